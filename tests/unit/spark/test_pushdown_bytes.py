"""How many bytes a filter saves: readers are asked as Spark asks them, and a real broker answers."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThan

from flowstone import Broker
from pyspark_flowstone.options import parse_options
from pyspark_flowstone.source import FilteringReader

RECORDS, RECORD_BYTES = 20_000, 1000


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """20 MB in a topic of one partition; record n is of second n."""
    with Broker(mode="process", settings={"log.segment.bytes": 1 << 20}) as broker:
        broker.create_topic("readings", partitions=1)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.size": 64_000})
        for number in range(RECORDS):
            producer.produce("readings", b"x" * RECORD_BYTES, timestamp=number * 1000 + 1)
            if number % 1000 == 0:
                producer.poll(0)
        assert producer.flush(30) == 0
        yield broker.bootstrap


@pytest.fixture
def read(bootstrap, caplog):
    """The offsets that filters leave, and the bytes fetched for them."""

    def through(filters, pushdown="true"):
        options = {"kafka.bootstrap.servers": bootstrap, "subscribe": "readings", "columns": "offset"}
        reader = FilteringReader(parse_options({**options, "filterPushdown": pushdown}))
        assert list(reader.pushFilters(filters)) == filters
        caplog.clear()
        with caplog.at_level(logging.INFO, "pyspark_flowstone.reader"):
            batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        told = (re.match(r"fetched (\d+) bytes", record.message) for record in caplog.records)
        offsets = [offset for batch in batches for offset in batch.column("offset").to_pylist()]
        return offsets, sum(int(match[1]) for match in told if match)

    return through


def second(number):
    return datetime.fromtimestamp(number, UTC)


def test_without_a_filter_everything_is_fetched(read):
    offsets, fetched_bytes = read([])
    assert offsets == list(range(RECORDS))
    assert fetched_bytes > RECORDS * RECORD_BYTES


def test_a_time_filter_fetches_what_is_as_late_and_little_more(read):
    offsets, fetched_bytes = read([GreaterThanOrEqual(("timestamp",), second(19_000))])
    assert offsets == list(range(19_000, RECORDS))
    assert fetched_bytes < 1000 * RECORD_BYTES * 1.2


def test_where_times_never_go_back_an_upper_bound_counts_too(read):
    filters = [GreaterThanOrEqual(("timestamp",), second(5000)), LessThan(("timestamp",), second(5500))]
    offsets, fetched_bytes = read(filters, pushdown="ordered")
    assert offsets == list(range(5000, 5500))
    assert fetched_bytes < 3_000_000


def test_where_times_may_go_back_an_upper_bound_is_left_to_spark(read):
    offsets, _ = read([LessThan(("timestamp",), second(500))])
    assert offsets == list(range(RECORDS))


def test_a_time_after_the_last_record_fetches_nothing(read):
    assert read([GreaterThanOrEqual(("timestamp",), second(30_000))]) == ([], 0)


def test_a_partition_that_is_filtered_out_is_not_fetched(read):
    assert read([EqualTo(("partition",), 1)]) == ([], 0)


def test_an_offset_filter_fetches_little_more_than_the_offset(read):
    offsets, fetched_bytes = read([EqualTo(("offset",), 7)])
    assert offsets == [7]
    assert fetched_bytes < 3_000_000
