"""`flowstone.read`: which records a call gives, and what it says when it cannot."""

from __future__ import annotations

import inspect
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient

import flowstone
from flowstone.arrow.schema import schema
from flowstone.client import Cluster, GaveUp, OffsetsLost, Producer, TopicRecreated, UnknownTopic
from flowstone.embedded import Broker
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import Record, build_batch

# Records of a partition are a second apart, from here on.
FIRST_MS = 1_700_000_000_000
RECORDS = 100
_numbers = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker) -> str:
    """Three partitions: of 100 records, of 50, and of none; each value is partition and offset."""
    name = f"orders-{next(_numbers)}"
    broker.create_topic(name, partitions=3)
    with Cluster(broker.bootstrap) as cluster, Producer(cluster) as producer:
        for partition, size in ((0, RECORDS), (1, RECORDS // 2)):
            for base in range(0, size, 10):
                records = [
                    Record(at, FIRST_MS + 1000 * (base + at), b"key", b"%d/%d" % (partition, base + at), (("n", b"1"),))
                    for at in range(10)
                ]
                producer.send(TopicPartition(name, partition), bytearray(build_batch(records)), 10)
    return name


def offsets(table: pa.Table) -> dict[int, list[int]]:
    """By partition, in the order of the table."""
    found: dict[int, list[int]] = {}
    for row in table.select(["partition", "offset"]).to_pylist():
        found.setdefault(row["partition"], []).append(row["offset"])
    return found


def at_second(seconds: float) -> datetime:
    return datetime.fromtimestamp(FIRST_MS / 1000 + seconds, UTC)


def test_a_topic_is_read_whole_partition_after_partition(broker: Broker, topic: str):
    table = flowstone.read(topic, bootstrap=broker.bootstrap)
    assert table.schema == schema()
    assert offsets(table) == {0: list(range(100)), 1: list(range(50))}
    assert table.slice(103, 1).to_pylist() == [
        {
            "key": b"key",
            "value": b"1/3",
            "topic": topic,
            "partition": 1,
            "offset": 3,
            "timestamp": at_second(3),
            "timestampType": 0,
        }
    ]


def test_only_the_columns_asked_for_are_read(broker: Broker, topic: str):
    table = flowstone.read(topic, columns=["offset", "headers"], end=1, bootstrap=broker.bootstrap)
    assert table.to_pylist()[0] == {"offset": 0, "headers": [{"key": "n", "value": b"1"}]}


def test_only_the_partitions_asked_for_are_read(broker: Broker, topic: str):
    assert offsets(flowstone.read(topic, partitions=[1], bootstrap=broker.bootstrap)) == {1: list(range(50))}


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (95, "latest", {0: range(95, 100)}),
        ("earliest", 3, {0: range(3), 1: range(3)}),
        (48, 52, {0: range(48, 52), 1: range(48, 50)}),
        ("latest", "latest", {}),
        (60, 40, {}),
        (at_second(97), "latest", {0: range(97, 100)}),
        (at_second(96.5), at_second(98.5), {0: range(97, 99)}),
        (at_second(-10_000), at_second(2), {0: range(2), 1: range(2)}),
        (at_second(1000), "latest", {}),
        ({0: 98}, {1: 2}, {0: range(98, 100), 1: range(2)}),
        ({0: "latest", 1: at_second(48)}, "latest", {1: range(48, 50)}),
        (0, 10**12, {0: range(100), 1: range(50)}),
    ],
)
def test_start_and_end_are_places_times_or_offsets(broker: Broker, topic: str, start, end, expected):
    table = flowstone.read(topic, start=start, end=end, bootstrap=broker.bootstrap)
    assert offsets(table) == {partition: list(each) for partition, each in expected.items()}


def test_a_time_without_a_zone_is_local(broker: Broker, topic: str):
    start = at_second(98).astimezone().replace(tzinfo=None)
    assert offsets(flowstone.read(topic, start=start, bootstrap=broker.bootstrap)) == {0: [98, 99]}


def test_the_same_offsets_give_the_same_rows_again(broker: Broker, topic: str):
    first = flowstone.read(topic, start=5, end=20, bootstrap=broker.bootstrap)
    assert flowstone.read(topic, start=5, end=20, bootstrap=broker.bootstrap).equals(first)


def test_batches_are_fetched_as_they_are_read_and_end_where_the_log_ended_at_the_call(broker: Broker, topic: str):
    reader = flowstone.read_batches(topic, partitions=[1], bootstrap=broker.bootstrap)
    assert isinstance(reader, pa.RecordBatchReader)
    assert reader.schema == schema()
    with Cluster(broker.bootstrap) as cluster, Producer(cluster) as producer:
        producer.send(TopicPartition(topic, 1), bytearray(build_batch([Record(0, FIRST_MS, None, b"late")])), 1)
    assert sum(batch.num_rows for batch in reader) == 50


def test_a_reader_that_is_left_alone_leaves_the_broker_alone(broker: Broker, topic: str):
    with broker.fault("Fetch", delay_ms=1) as fault:
        flowstone.read_batches(topic, bootstrap=broker.bootstrap)
    assert fault.hits == 0


@pytest.mark.parametrize("place", ["newest", -1, 1.5, True, None])
def test_what_is_no_place_is_refused(broker: Broker, topic: str, place: object):
    with pytest.raises(ValueError, match="no place in a partition: give 'earliest'"):
        flowstone.read(topic, start=place, bootstrap=broker.bootstrap)


def test_a_partition_that_is_not_there_is_refused(broker: Broker, topic: str):
    for options in ({"partitions": [3]}, {"start": {7: 0}}, {"end": {"0": 0}}):
        with pytest.raises(ValueError, match=f"{topic} has 3 partitions, and no partition"):
            flowstone.read(topic, bootstrap=broker.bootstrap, **options)


def test_a_column_that_is_not_there_is_refused_before_anything_is_asked():
    with pytest.raises(ValueError, match="no column 'price'"):
        flowstone.read("orders", columns=["price"], bootstrap="127.0.0.1:1")


def test_a_topic_that_is_not_there_is_named(broker: Broker):
    with pytest.raises(UnknownTopic, match="there is no topic nowhere"):
        flowstone.read("nowhere", bootstrap=broker.bootstrap)


def test_a_broker_that_is_not_there_is_told_after_the_deadline():
    with pytest.raises(GaveUp, match="no broker answers at 127"):
        flowstone.read("orders", bootstrap="127.0.0.1:1", deadline_s=0.1)


def test_an_unreachable_broker_is_told_within_five_seconds_unless_asked_otherwise():
    assert inspect.signature(flowstone.read).parameters["connect_deadline_s"].default == 5.0
    assert inspect.signature(flowstone.read_batches).parameters["connect_deadline_s"].default == 5.0
    begun_s = time.monotonic()
    with pytest.raises(GaveUp, match=r"no broker answers at 127\.0\.0\.1:1 "):
        flowstone.read("orders", bootstrap="127.0.0.1:1", connect_deadline_s=0.2)
    assert time.monotonic() - begun_s < 5  # deadline_s, 20 s, is for later


def test_an_address_that_is_silent_is_told_in_the_same_time():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        begun_s = time.monotonic()
        with pytest.raises(GaveUp, match=address):
            flowstone.read("orders", bootstrap=address, connect_deadline_s=1)
        assert time.monotonic() - begun_s < 1.9  # once, not once for the first attempt and again for the others


def test_offsets_that_retention_took_are_told(broker: Broker):
    broker.create_topic("short", partitions=1, configs={"segment.bytes": "1048576", "retention.ms": "1000"})
    with Cluster(broker.bootstrap) as cluster, Producer(cluster) as producer:
        for _ in range(3):
            batch = build_batch([Record(0, broker.clock.time_ms(), None, b"x" * 900_000)])
            producer.send(TopicPartition("short", 0), bytearray(batch), 1)
    broker.clock.advance(hours=1)
    with pytest.raises(OffsetsLost, match="short-0: offsets 0 to"):
        flowstone.read("short", start=0, end=3, bootstrap=broker.bootstrap)


def test_without_pyarrow_the_extra_is_named():
    program = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import flowstone\n"
        "try: flowstone.read\n"
        "except ImportError as error: print(error)"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert told == "reading topics as Arrow columns needs pyarrow: run `pip install 'flowstone[arrow]'`\n"


def test_a_topic_that_is_created_again_while_it_is_read_is_not_mixed_with_the_old_one(broker: Broker, topic: str):
    reading = flowstone.read_batches(topic, bootstrap=broker.bootstrap)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.delete_topics([topic])[topic].result(10)
    broker.create_topic(topic, partitions=3)
    with Cluster(broker.bootstrap) as cluster, Producer(cluster) as producer:
        batch = build_batch([Record(at, FIRST_MS, None, b"new") for at in range(RECORDS)])
        producer.send(TopicPartition(topic, 0), bytearray(batch), RECORDS)
    with pytest.raises(TopicRecreated, match=f"topic {topic} was deleted and created again"):
        reading.read_all()
    assert flowstone.read(topic, bootstrap=broker.bootstrap)["value"].unique().to_pylist() == [b"new"]
