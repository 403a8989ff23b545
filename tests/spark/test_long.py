"""Five million rows, there and back, and while a broker dies. For `make spark`."""

from __future__ import annotations

import os
import threading

import pytest

from tests.support.spark.queries import start_available

pytestmark = [
    pytest.mark.skipif(
        os.environ.get("FLOWSTONE_SPARK_LONG") != "1", reason="takes minutes: set FLOWSTONE_SPARK_LONG=1"
    ),
    pytest.mark.timeout(900),
]

ROWS = 5_000_000
PARTITIONS = 4
# Both are the same whatever the order of rows: one would miss pairs of equal rows, the other swapped ones.
CHECKSUMS = ("count(1)", "bit_xor(xxhash64(key, value))", "sum(cast(xxhash64(key, value) as decimal(38)))")
WAIT_S = 600


@pytest.fixture(scope="module")
def rows(spark):
    return spark.range(ROWS).selectExpr(
        "cast(concat('key-', id % 100003) as binary) as key", "cast(concat(id, repeat('x', 80)) as binary) as value"
    )


@pytest.fixture(scope="module")
def filled(broker, rows):
    broker.create_topic("millions", partitions=PARTITIONS)
    rows.write.format("flowstone").option("kafka.bootstrap.servers", broker.bootstrap).option("topic", "millions").mode(
        "append"
    ).save()
    return "millions"


def checksum(frame):
    return tuple(frame.selectExpr(*CHECKSUMS).collect()[0])


def test_a_batch_read_gives_every_row(filled, rows, load):
    assert checksum(load(filled, columns="key,value")) == checksum(rows)


def test_a_batch_read_over_many_tasks_gives_every_row(filled, rows, load):
    assert checksum(load(filled, columns="key,value", minPartitions="16")) == checksum(rows)


def test_every_offset_comes_once(filled, load):
    frame = load(filled, columns="partition,offset", minPartitions="16")
    found = frame.groupBy("partition").agg({"offset": "max", "*": "count"}).collect()
    assert len(found) == PARTITIONS
    assert all(row["max(offset)"] + 1 == row["count(1)"] for row in found)
    assert frame.distinct().count() == ROWS


def test_a_stream_in_many_batches_gives_every_row(spark, broker, filled, rows, tmp_path):
    reader = spark.readStream.format("flowstone").option("kafka.bootstrap.servers", broker.bootstrap)
    frame = reader.options(
        subscribe=filled, startingOffsets="earliest", columns="key,value", maxOffsetsPerTrigger="700000"
    ).load()
    writer = frame.writeStream.format("parquet").option("path", str(tmp_path / "table"))
    query = start_available(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
    assert query.awaitTermination(WAIT_S)
    assert sum(each["numInputRows"] > 0 for each in query.recentProgress) == 8
    assert checksum(spark.read.parquet(str(tmp_path / "table"))) == checksum(rows)


def test_a_broker_that_dies_while_it_is_read_costs_no_row(broker, filled, rows, load):
    def disturb():
        for _ in range(3):
            if stopped.wait(1.5):
                return
            broker.kill()
            broker.restart()

    stopped = threading.Event()
    disturber = threading.Thread(target=disturb)
    disturber.start()
    try:
        assert checksum(load(filled, columns="key,value", minPartitions="16")) == checksum(rows)
    finally:
        stopped.set()
        disturber.join()
