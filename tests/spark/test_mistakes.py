"""What a user of a real Spark session sees of a mistake: the exception's class, and a sentence in its first line.

Each message is Spark's prefix, then `flowstone:` and the sentence. Spark adds its SQLSTATE, and for a streaming query
the state and the plan of the query: never a traceback.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql.datasource import DataSource

from flowstone import Broker

QUERY_TIMEOUT_S = 60
LINES_MAX = 2  # the sentence, and Spark's SQLSTATE
STREAM_LINES_MAX = 16  # Spark adds the state and the plan of the query
SECONDS_MAX = 30  # load() waits 5 s for a broker and save() 15 s; the machine may be busy

STREAM_PREFIX = "terminated with exception: [PYTHON_"
LOAD_PREFIX = "[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: flowstone: "
WRITER_PREFIX = "[PYTHON_DATA_SOURCE_ERROR] Failed to initialize Python data source writer: flowstone: "


@pytest.fixture(scope="module")
def strict_broker():
    """A broker that creates no topics by itself."""
    with Broker(mode="process", settings={"auto.create.topics.enable": "false"}) as broker:
        yield broker


@pytest.fixture
def nobody():
    """An address at which nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture(params=["batch", "stream"])
def reader(request, spark, broker):
    chosen = spark.read if request.param == "batch" else spark.readStream
    return chosen.format("flowstone").option("kafka.bootstrap.servers", broker.bootstrap)


@pytest.fixture
def rows(spark):
    return spark.createDataFrame([("k", "v")], "key string, value string")


@pytest.fixture
def arriving(spark, broker, topic, fill):
    """A stream of two records."""
    fill(topic, ["a", "b"])
    stream = spark.readStream.format("flowstone").option("kafka.bootstrap.servers", broker.bootstrap)
    return stream.options(subscribe=topic, startingOffsets="earliest", columns="value").load()


def first_line(error, lines_max=LINES_MAX):
    text = str(error.value).strip()
    assert "Traceback" not in text
    assert "\tat " not in text, "a JVM stack trace"
    assert text.count("\n") < lines_max, text
    return text.partition("\n")[0]


def stream_failure(frame, tmp_path, sink="noop", **options):
    """The first line of what ends a streaming query."""
    writer = frame.writeStream.format(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.options(**options).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException) as error:
        query.awaitTermination(QUERY_TIMEOUT_S)
    line = first_line(error, STREAM_LINES_MAX)
    assert STREAM_PREFIX in line
    return line.partition(": flowstone: ")[2]


def save_failure(rows, bootstrap, **options):
    """The first line of what `save()` raises."""
    writer = rows.write.format("flowstone").option("kafka.bootstrap.servers", bootstrap).options(**options)
    with pytest.raises(AnalysisException) as error:
        writer.mode("append").save()
    return first_line(error)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"startingOfsets": "latest"}, "startingofsets: the source has no such option; did you mean startingOffsets?"),
        ({"startingOffsets": '{"t": {"0": 1'}, "startingOffsets: it is not JSON (Expecting ',' delimiter: line 1 col"),
        ({"kafka.bootstrap.servers": "here:there"}, "kafka.bootstrap.servers: here:there is not HOST:PORT: give the"),
        ({"subscribe": "nowhere"}, "subscribe: there is no topic nowhere at 127.0.0.1:"),
        ({"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger: 'many' is not a whole number above 0"),
    ],
)
def test_a_mistake_in_a_read_fails_load_with_its_sentence(reader, topic, options, sentence):
    with pytest.raises(AnalysisException) as error:
        reader.options(**{"subscribe": topic, **options}).load()
    assert first_line(error).startswith(LOAD_PREFIX + sentence)


def test_a_broker_that_does_not_answer_fails_load_within_seconds_and_is_named(reader, nobody):
    began = time.monotonic()
    with pytest.raises(AnalysisException) as error:
        reader.options(**{"kafka.bootstrap.servers": nobody, "subscribe": "orders"}).load()
    assert time.monotonic() - began < SECONDS_MAX
    assert first_line(error) == (
        f"{LOAD_PREFIX}kafka.bootstrap.servers: no broker answers at {nobody} (Connection refused); gave up after "
        "trying for 5 s; check the address, and that the broker is running"
    )


def test_a_mistake_that_only_a_batch_query_makes_fails_it_with_its_sentence(topic, load):
    with pytest.raises(AnalysisException) as error:
        load(topic, startingOffsets="latest").collect()
    assert first_line(error).endswith(
        ": flowstone: startingOffsets: a batch read cannot start at latest, where there is nothing yet"
    )


def test_lost_records_fail_a_batch_query_with_their_sentence(topic, load):
    with pytest.raises(AnalysisException) as error:
        load(topic, startingOffsets=json.dumps({topic: {"0": 0, "1": 30}})).collect()
    assert f": flowstone: {topic}-1: offsets up to 29 were expected and the log ends at 0" in first_line(error)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets: a streaming query has no end; use the trigger availableNow, or"),
        ({"filterPushdown": "true"}, "filterPushdown: Spark pushes filters into batch reads only"),
        ({"startingOffsets": '{"TOPIC": {"0": 1}}'}, "startingOffsets: it says nothing of TOPIC-1; name every"),
        ({"startingOffsets": '{"TOPIC": {"0": 0, "1": 9}}'}, "TOPIC-1: offsets up to 8 were expected and the log ends"),
        ({"subscribe": "nowhere", "failOnDataLoss": "false"}, "subscribe: there is no topic nowhere at 127.0.0.1:"),
    ],
)
def test_a_mistake_that_only_a_streaming_query_makes_ends_it_with_its_sentence(
    spark, broker, topic, tmp_path, options, sentence
):
    given = {name: value.replace("TOPIC", topic) for name, value in options.items()}
    stream = spark.readStream.format("flowstone").option("kafka.bootstrap.servers", broker.bootstrap)
    failure = stream_failure(stream.options(**{"subscribe": topic, **given}).load(), tmp_path)
    assert failure.startswith(sentence.replace("TOPIC", topic))


def test_load_tells_a_source_the_same_for_a_batch_as_for_a_stream(spark, tmp_path):
    """If this changes, `endingOffsets` of a stream can be refused at load(): docs/spark-reading.md."""

    class Spy(DataSource):
        @classmethod
        def name(cls):
            return "spy"

        def schema(self):
            names, frame = [], sys._getframe()
            while frame is not None:
                names.append(frame.f_code.co_name)
                frame = frame.f_back
            told = {"options": dict(self.options), "arguments": sys.argv, "variables": sorted(os.environ)}
            with open(self.options["file"], "a") as file:
                print(json.dumps(told | {"callers": names, "attributes": sorted(vars(self))}), file=file)
            return "value string"

    spark.dataSource.register(Spy)
    file = tmp_path / "told"
    for read in (spark.read, spark.readStream):
        read.format("spy").options(file=str(file), endingOffsets="latest").load()
    of_batch, of_stream = file.read_text().splitlines()
    assert of_batch == of_stream


def test_a_mistake_in_a_batch_write_fails_save_with_its_sentence(rows, broker, topic):
    assert save_failure(rows, broker.bootstrap, topic=topic, topics="x") == (
        f"{WRITER_PREFIX}topics: the sink has no such option; did you mean topic?"
    )
    assert save_failure(rows.drop("value"), broker.bootstrap, topic=topic) == (
        f"{WRITER_PREFIX}the rows need a column `value` to write; their columns are key"
    )


def test_a_broker_that_does_not_answer_fails_save_within_seconds_and_is_named(rows, nobody):
    began = time.monotonic()
    line = save_failure(rows, nobody, topic="orders")
    assert time.monotonic() - began < SECONDS_MAX
    assert line.startswith(
        f"{WRITER_PREFIX}kafka.bootstrap.servers: no broker answers at {nobody} (Connection refused)"
    )


def test_a_mistake_in_a_streaming_write_ends_the_query_with_its_sentence(broker, topic, arriving, tmp_path):
    given = {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic, "topics": "x"}
    assert stream_failure(arriving, tmp_path, "flowstone", **given) == (
        "topics: the sink has no such option; did you mean topic?"
    )


def test_a_row_that_cannot_be_written_fails_its_task_with_its_sentence(rows, broker, topic):
    large = rows.selectExpr("repeat('x', 2000000) value").write.format("flowstone")
    with pytest.raises(PythonException) as error:
        large.options(**{"kafka.bootstrap.servers": broker.bootstrap, "topic": topic}).mode("append").save()
    assert str(error.value).strip().splitlines()[1:] == [
        "flowstone: row 0 cannot be written: it takes 2000074 bytes, and a batch has at most 1048576"
    ]


def test_a_missing_topic_fails_save_where_the_broker_creates_none(rows, strict_broker):
    began = time.monotonic()
    assert save_failure(rows, strict_broker.bootstrap, topic="nowhere") == (
        f"{WRITER_PREFIX}topic: there is no topic nowhere, and the broker did not create it (see its setting "
        "auto.create.topics.enable); create it with `flowstone topic create nowhere`"
    )
    assert time.monotonic() - began < SECONDS_MAX


def test_a_missing_topic_that_a_row_names_fails_the_task_where_the_broker_creates_none(rows, strict_broker):
    named = rows.selectExpr("'nowhere' topic", "value").write.format("flowstone")
    with pytest.raises(PythonException, match="flowstone: topic: there is no topic nowhere, and the broker did not"):
        named.option("kafka.bootstrap.servers", strict_broker.bootstrap).mode("append").save()


def test_a_missing_topic_ends_a_streaming_write_where_the_broker_creates_none(arriving, strict_broker, tmp_path):
    given = {"kafka.bootstrap.servers": strict_broker.bootstrap, "topic": "nowhere"}
    assert stream_failure(arriving, tmp_path, "flowstone", **given).startswith(
        "topic: there is no topic nowhere, and the broker did not create it"
    )
