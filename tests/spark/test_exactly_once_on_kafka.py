"""The exactly-once sink writing to Apache Kafka. For `make spark`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from scripts.fetch_kafka import FetchError, kafka_home

from bench.servers import Kafka
from flowstone import read
from flowstone.client import Cluster
from pyspark_flowstone import exactly_once
from tests.support.spark.queries import start_available

pytestmark = pytest.mark.skipif(
    os.environ.get("FLOWSTONE_SPARK_LONG") != "1", reason="takes a minute: set FLOWSTONE_SPARK_LONG=1"
)

TIMEOUT_S = 120
RECORDS = 300
SETTINGS = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "offsets.topic.replication.factor": "1",
}


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    """The address of an Apache Kafka with an empty topic to read and one to write."""
    try:
        kafka_home()
    except FetchError as error:
        pytest.skip(str(error))
    with Kafka(SETTINGS) as server:
        client = AdminClient({"bootstrap.servers": server.address})
        for created in client.create_topics([NewTopic("in", 2, 1), NewTopic("out", 3, 1)]).values():
            created.result(TIMEOUT_S)
        yield server.address


def visible(bootstrap: str) -> Counter[str]:
    table = read("out", read_committed=True, bootstrap=bootstrap, columns=["value"])
    return Counter(value.decode() for value in table.column("value").to_pylist())


def test_a_stream_is_written_once_to_kafka_though_a_commit_is_forgotten_and_a_run_abandoned(spark, kafka, tmp_path):
    rows = spark.range(RECORDS).selectExpr("cast(id % 7 as string) key", "cast(id as string) value")
    rows.write.format("flowstone").options(**{"kafka.bootstrap.servers": kafka, "topic": "in"}).mode("append").save()

    def run() -> None:
        given = {"kafka.bootstrap.servers": kafka, "subscribe": "in", "startingOffsets": "earliest"}
        source = spark.readStream.format("flowstone").options(**given, maxOffsetsPerTrigger=120).load()
        placed = exactly_once(source.select("key", "value"), bootstrap=kafka, topic="out")
        sink = {"kafka.bootstrap.servers": kafka, "topic": "out", "delivery": "exactly-once", "sinkName": "copy"}
        writer = placed.writeStream.format("flowstone").options(**sink)
        query = start_available(writer.option("checkpointLocation", str(tmp_path)))
        assert query.awaitTermination(TIMEOUT_S)

    run()
    assert visible(kafka) == Counter(map(str, range(RECORDS)))

    commits = sorted((tmp_path / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    (tmp_path / "commits" / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    with Cluster(kafka) as cluster:
        cluster.begin_transaction("flowstone.copy", 600_000).add_partitions([("out", 0)])
    run()
    assert visible(kafka) == Counter(map(str, range(RECORDS)))
