"""Spark reads with `isolation.level=read_committed`: aborted data, open transactions, end markers in the offsets."""

from __future__ import annotations

import time

import pytest

from tests.support.transactional_records import (
    ABORTED,
    COMMITTED,
    OPEN,
    TransactionalWriter,
    seen_by_stock_client,
)

WAIT_S = 120
READ_COMMITTED = {"isolation.level": "read_committed"}


@pytest.fixture
def writer(broker, topic):
    return TransactionalWriter(broker.bootstrap, topic)


@pytest.fixture
def holder(writer):
    """The producer of a transaction that is open at the end of a topic with every other kind."""
    writer.write_plain("plain")
    writer.write(ABORTED, 3, 2)
    writer.write(COMMITTED, 2, 3)
    writer.write(ABORTED, 4)
    writer.write(COMMITTED, 1)
    producer = writer.write(OPEN, 2)
    writer.write_plain("behind the open one")
    return producer


def rows(frame):
    return sorted((row.offset, bytes(row.value).decode()) for row in frame.collect())


def test_a_batch_reads_what_a_stock_consumer_reads(broker, topic, holder, writer, load):
    expected = seen_by_stock_client(broker.bootstrap, topic)
    assert len(expected) == 1 + 5 + 1
    assert rows(load(topic, **READ_COMMITTED)) == expected
    assert len(rows(load(topic))) == 1 + 5 + 5 + 4 + 1 + 2 + 1, "uncommitted, the default"

    writer.end(holder, COMMITTED)
    assert rows(load(topic, **READ_COMMITTED)) == seen_by_stock_client(broker.bootstrap, topic)
    assert load(topic, **READ_COMMITTED).count() == 1 + 5 + 1 + 2 + 1


@pytest.mark.parametrize("limit", [{"maxOffsetsPerTrigger": "7"}, {"maxBytesPerTrigger": "400"}], ids=str)
def test_a_stream_reads_each_committed_record_once(broker, topic, holder, writer, stream_available, limit):
    assert stream_available(**limit) == seen_by_stock_client(broker.bootstrap, topic)
    writer.end(holder, COMMITTED)
    found = stream_available(**limit)
    assert found == seen_by_stock_client(broker.bootstrap, topic)
    assert len(found) == 1 + 5 + 1 + 2 + 1
    writer.write(ABORTED, 20)  # a batch without a row
    assert stream_available(**limit) == found


def test_a_running_stream_shows_a_transaction_when_it_is_committed(spark, broker, topic, writer, tmp_path):
    frame = spark.readStream.format("flowstone").option("kafka.bootstrap.servers", broker.bootstrap)
    frame = frame.options(subscribe=topic, startingOffsets="earliest", **READ_COMMITTED).load()
    query = frame.writeStream.format("memory").queryName("committed").option("checkpointLocation", str(tmp_path))
    query = query.start()
    try:
        writer.write_plain("before")
        await_rows(spark, query, 1)
        aborted, committed = writer.write(OPEN, 3), writer.write(OPEN, 2)
        writer.write_plain("after")
        query.processAllAvailable()
        assert spark.table("committed").count() == 1
        writer.end(committed, COMMITTED)
        query.processAllAvailable()
        assert spark.table("committed").count() == 1, "the first one still holds it back"
        writer.end(aborted, ABORTED)
        await_rows(spark, query, 4)
        assert rows(spark.table("committed")) == seen_by_stock_client(broker.bootstrap, topic)
    finally:
        query.stop()


def await_rows(spark, query, count):
    deadline_s = time.monotonic() + WAIT_S
    while spark.table("committed").count() < count and time.monotonic() < deadline_s:
        query.processAllAvailable()
    assert spark.table("committed").count() == count


@pytest.fixture
def stream_available(spark, broker, topic, tmp_path):
    """Reads what is committed and not read yet into a table, and gives all rows of the table."""

    def run(**options):
        frame = spark.readStream.format("flowstone").option("kafka.bootstrap.servers", broker.bootstrap)
        frame = frame.options(subscribe=topic, startingOffsets="earliest", **READ_COMMITTED, **options).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.option("path", str(tmp_path / "out")).trigger(availableNow=True).start()
        assert query.awaitTermination(WAIT_S)
        return rows(spark.read.parquet(str(tmp_path / "out")))

    return run
