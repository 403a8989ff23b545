"""What stands in `__consumer_offsets` besides what this broker's coordinator writes: groups work all the same."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from flowstone.coordinator.effects import TransactionalProducer
from flowstone.coordinator.groups import record_format
from flowstone.coordinator.groups.records import OffsetCommitted
from flowstone.coordinator.record_batches import encode_batches
from flowstone.errors import ErrorCode
from flowstone.replication.partition import ACKS_ALL
from flowstone.types import TopicPartition
from flowstone.wire import messages as m
from flowstone.wire.end_markers import end_marker
from flowstone.wire.record_batch import Record, build_batch, decode_records, parse_header
from tests.support.group_commits import commit
from tests.support.running_app import RunningApp
from tests.support.wire_client import Client

PLACE = TopicPartition("__consumer_offsets", 0)
PRODUCER = TransactionalProducer(70_000, 3)
UNKNOWN = Record(0, 1, pack(">h", 77) + b"of a newer broker", b"\x00\x00 its value")
NEWER = Record(0, 1, record_format.encode(OffsetCommitted("newer", "t", 0, 9))[0], pack(">hq", 60, 9))
BATCH_BYTES_MAX = 1 << 20
SETTINGS = {"offsets_topic_num_partitions": "1", "log_cleaner_backoff_ms": "20", "log_segment_delete_delay_ms": "0"}
COMPACTED_TIMEOUT_S = 30.0
REMOVED_TIMEOUT_S = 30.0

Start = Callable[[], RunningApp]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    return lambda: RunningApp(str(tmp_path), offsets_topic_segment_bytes=str(1 << 20), **SETTINGS)


def begin(app: RunningApp) -> Client:
    """A client of a broker with a topic, and a group that has committed in it."""
    client = app.client()
    client.create_topic("t", 1)
    commit(client, "g", "t", 5)
    return client


def append(app: RunningApp, *batches: bytes) -> None:
    """Have batches in the coordinator's log that its state machine did not make."""
    partition = app.app.services.partitions.find(PLACE)
    assert partition is not None
    for batch in batches:
        app.call(lambda batch=batch: partition.append(batch, ACKS_ALL, is_own=True))  # type: ignore[misc]


def offset_batch(group_id: str, offset: int, producer: TransactionalProducer | None = None) -> bytes:
    (batch,) = encode_batches(record_format, [OffsetCommitted(group_id, "t", 0, offset)], 1, BATCH_BYTES_MAX, producer)
    return batch


def committed(client: Client, group_id: str, topic: str = "t") -> int:
    topics = [m.OffsetFetchRequestTopic(name=topic, partition_indexes=[0])]
    response: Any = client.ask(7, m.OffsetFetchRequest(group_id=group_id, topics=topics))
    assert response.error_code == ErrorCode.NONE
    return int(response.topics[0].partitions[0].committed_offset)


def test_groups_work_after_a_restart_over_a_control_batch(start: Start) -> None:
    with start() as app, begin(app):
        append(app, end_marker(*PRODUCER, 1, True, 1))
    with start() as app, app.client() as client:
        assert committed(client, "g") == 5
        commit(client, "g", "t", 6)
        assert committed(client, "g") == 6
    with start() as app, app.client() as client:
        assert committed(client, "g") == 6


@pytest.mark.parametrize(("is_commit", "found"), [(True, 8), (False, 5), (None, 5)])
def test_offsets_of_a_transaction_count_once_it_is_committed(start: Start, is_commit: bool | None, found: int) -> None:
    with start() as app, begin(app):
        append(app, offset_batch("g", 8, PRODUCER))
        if is_commit is not None:
            append(app, end_marker(PRODUCER.producer_id + 1, 0, 1, not is_commit, 1))
            append(app, end_marker(PRODUCER.producer_id, PRODUCER.producer_epoch + 1, 1, is_commit, 1))
    with start() as app, app.client() as client:
        assert committed(client, "g") == found


def test_an_offset_of_a_topic_deleted_while_nobody_hosted_the_group_is_not_found_by_a_later_topic(start: Start) -> None:
    with start() as app, begin(app):
        (stale,) = encode_batches(record_format, [OffsetCommitted("g", "gone", 0, 8)], 1, BATCH_BYTES_MAX)
        append(app, stale)
    with start() as app, app.client() as client:
        deadline = time.monotonic() + REMOVED_TIMEOUT_S
        while committed(client, "g", "gone") != -1 and time.monotonic() < deadline:
            time.sleep(0.01)
        client.create_topic("gone", 1)
        assert (committed(client, "g", "gone"), committed(client, "g")) == (-1, 5)


def test_records_of_a_newer_broker_are_skipped_with_a_warning_for_each_kind(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    with start() as app, begin(app):
        append(app, *(build_batch([record]) for record in (UNKNOWN, NEWER, UNKNOWN, NEWER)), offset_batch("h", 3))
    with start() as app, app.client() as client:
        assert (committed(client, "g"), committed(client, "h"), committed(client, "newer")) == (5, 3, -1)
    told = [record.getMessage() for record in caplog.records if "newer broker" in record.getMessage()]
    assert len(told) == 2
    assert "key version 77 and value version 0" in told[0]
    assert "key version 1 and value version 60" in told[1]


def test_compaction_and_later_commits_keep_the_records_of_a_newer_broker(start: Start, tmp_path: Path) -> None:
    with start() as app, begin(app) as client:
        append(app, build_batch([UNKNOWN, NEWER._replace(offset=1)]), *(big_batch(number) for number in range(8)))
        deadline = time.monotonic() + COMPACTED_TIMEOUT_S
        while stored_bytes(tmp_path) > 4 << 20:
            assert time.monotonic() < deadline, "it was not compacted"
            time.sleep(0.05)
        commit(client, "g", "t", 7)
    with start() as app, app.client() as client:
        commit(client, "newest", "t", 8)
        assert (committed(client, "g"), committed(client, "big")) == (7, 7)
    stored = [record for path in log_files(tmp_path) for record in stored_records(path)]
    for record in UNKNOWN, NEWER:
        assert [each.value for each in stored if each.key == record.key] == [record.value]


def big_batch(number: int) -> bytes:
    """Nearly a segment, of which compaction needs the last one only."""
    offsets = [OffsetCommitted("big", "t", partition, number, metadata="n" * 4000) for partition in range(200)]
    (batch,) = encode_batches(record_format, offsets, 1, BATCH_BYTES_MAX)
    return batch


def log_files(data: Path) -> list[Path]:
    return sorted(data.glob("__consumer_offsets-0/*.log"))


def stored_bytes(data: Path) -> int:
    return sum(path.stat().st_size for path in log_files(data))


def stored_records(path: Path) -> list[Record]:
    data, position, records = path.read_bytes(), 0, list[Record]()
    while position < len(data):
        records += decode_records(data, position)
        position += parse_header(data, position).size_bytes
    return records
