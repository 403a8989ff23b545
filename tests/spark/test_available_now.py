"""The trigger availableNow on PySpark 4.0 and 4.1, which do not tell a source about it."""

from __future__ import annotations

import pytest
from pyspark.errors import StreamingQueryException

from pyspark_flowstone.versions import TELLS_START, once_settings

WAIT_S = 120

pytestmark = pytest.mark.skipif(TELLS_START, reason="PySpark 4.2 and newer tell a source about the trigger")


@pytest.fixture
def run(spark, broker, topic, tmp_path):
    """Runs a query with the trigger from the checkpoint of the test, and returns the rows of each micro-batch."""

    def read(*, fails=False, **options):
        counts = []

        def take(frame, batch_id):
            counts.append(frame.count())
            assert not fails

        frame = spark.readStream.format("flowstone").option("kafka.bootstrap.servers", broker.bootstrap)
        frame = frame.options(subscribe=topic, startingOffsets="earliest", **options).load()
        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path))
        assert writer.trigger(availableNow=True).start().awaitTermination(WAIT_S)
        return counts

    return read


@pytest.fixture
def wrapped(spark):
    """Spark then asks a source for the end of the run before everything else."""
    for name, value in once_settings().items():
        spark.conf.set(name, value)
    yield
    for name in once_settings():
        spark.conf.unset(name)


def test_a_run_reads_everything_in_one_micro_batch(topic, fill, run):
    fill(topic, ["x"] * 10)
    assert run() == [10]
    fill(topic, ["x"] * 4)
    assert run() == [4]


def test_a_limited_run_leaves_the_rest_to_the_next(topic, fill, run):
    fill(topic, ["x"] * 10)
    assert [run(maxOffsetsPerTrigger="6") for _ in range(2)] == [[6], [4]]


def test_a_wrapped_run_reads_on_after_a_micro_batch_that_it_repeats(topic, fill, run, wrapped):
    fill(topic, ["x"] * 10)
    with pytest.raises(StreamingQueryException):
        run(fails=True)
    fill(topic, ["x"] * 4)
    assert run() == [10, 4]


def test_a_wrapped_run_with_a_limit_is_refused(topic, fill, run, wrapped):
    fill(topic, ["x"] * 10)
    sentence = "in a single micro-batch with the trigger availableNow, which cannot be limited; leave out the limit"
    with pytest.raises(StreamingQueryException, match=sentence):
        run(maxOffsetsPerTrigger="6")
    assert run() == [10]
    fill(topic, ["x"] * 10)
    with pytest.raises(StreamingQueryException, match=sentence):
        run(maxOffsetsPerTrigger="6")
    assert run() == [10]
