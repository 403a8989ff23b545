"""What read_committed leaves out, shown against Apache Kafka. For `make spark`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from scripts.fetch_kafka import FetchError, kafka_home

from bench.servers import Kafka
from tests.support.spark.queries import start_available

pytestmark = pytest.mark.skipif(
    os.environ.get("FLOWSTONE_SPARK_LONG") != "1", reason="takes a minute: set FLOWSTONE_SPARK_LONG=1"
)

TIMEOUT_S = 60


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    """The address of an Apache Kafka with a topic: two transactions committed, one aborted, one open at its end."""
    try:
        kafka_home()
    except FetchError as error:
        pytest.skip(str(error))
    with Kafka({"transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1"}) as server:
        client = AdminClient({"bootstrap.servers": server.address})
        for created in client.create_topics([NewTopic("ledger", 1, 1)]).values():
            created.result(TIMEOUT_S)
        transact(server.address, "first", "committed")
        transact(server.address, "second", "aborted")
        transact(server.address, "third", "committed")
        transact(server.address, "fourth", "open")
        yield server.address


def transact(bootstrap: str, name: str, end: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    for number in range(10):
        producer.produce("ledger", f"{end} {name} {number}")
    assert producer.flush(TIMEOUT_S) == 0
    if end == "committed":
        producer.commit_transaction(TIMEOUT_S)
    elif end == "aborted":
        producer.abort_transaction(TIMEOUT_S)


@pytest.fixture
def options(kafka):
    return {"kafka.bootstrap.servers": kafka, "subscribe": "ledger"}


def ends(frame):
    return sorted({bytes(row.value).decode().split()[0] for row in frame.collect()})


def test_everything_is_read_unless_asked_otherwise(spark, options):
    frame = spark.read.format("flowstone").options(**options).load()
    assert ends(frame) == ["aborted", "committed", "open"]
    assert frame.count() == 40


def test_only_what_was_committed_is_read_where_asked(spark, options):
    frame = spark.read.format("flowstone").options(**options, **{"isolation.level": "read_committed"}).load()
    assert ends(frame) == ["committed"]
    assert frame.count() == 20


def test_a_stream_of_what_was_committed_ends_before_what_is_open(spark, options, tmp_path):
    given = {**options, "kafka.isolation.level": "read_committed", "startingOffsets": "earliest"}
    frame = spark.readStream.format("flowstone").options(**given, maxOffsetsPerTrigger="7").load()
    writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "table"))
    query = start_available(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
    assert query.awaitTermination(TIMEOUT_S * 2)
    found = spark.read.parquet(str(tmp_path / "table"))
    assert ends(found) == ["committed"]
    assert found.count() == 20
