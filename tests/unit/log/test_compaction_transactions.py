"""C4: what compaction makes of transactions, on logs written by hand: open, committed and aborted ones, and markers."""

from __future__ import annotations

import dataclasses
from struct import Struct
from typing import Any

import pytest

from flowstone.log.segments.compaction_job import CompactionError
from flowstone.log.segments.segment import segment_path
from flowstone.wire.compression import Codec, compress
from flowstone.wire.record_batch import (
    HEADER_BYTES,
    LOG_OVERHEAD,
    Record,
    build_batch,
    decode_records,
    encode_header,
    parse_header,
)
from tests.support.compacted_log import CompactionRun

ABORT, COMMIT = 0, 1
MARKER_KEY = Struct(">hh")
DELETE_RETENTION_MS = 1000


class TransactionalLog:
    """A log whose batches are put into its file as they are: a broker would refuse them from a client."""

    def __init__(self, world: Any) -> None:
        self.world = world
        world.config = dataclasses.replace(
            world.config,
            cleanup_policy=("compact",),
            min_cleanable_dirty_ratio=0.0,
            delete_retention_ms=DELETE_RETENTION_MS,
            segment_bytes=1 << 20,
        )
        world.log.configure(world.config)
        world.append()  # makes the directory
        self.batches: list[bytes] = []
        self.offset = 0

    def write(self, producer_id: int, *keys: bytes, value: bytes | None = b"v", **more: Any) -> None:
        records = [Record(self.offset + at, 1, key, value) for at, key in enumerate(keys)]
        more = {"is_transactional": producer_id >= 0, "base_sequence": 0, "producer_epoch": 0, **more}
        self.batches.append(build_batch(records, base_offset=self.offset, producer_id=producer_id, **more))
        self.offset += len(keys)

    def end(self, producer_id: int, kind: int) -> None:
        self.write(producer_id, MARKER_KEY.pack(0, kind), value=b"\0" * 6, is_control=True, base_sequence=-1)

    def open(self) -> None:
        """The log as a start finds it, with an active segment of one record behind what was written."""
        world = self.world
        last = build_batch([Record(self.offset, 1, b"last", b"v")], base_offset=self.offset)
        for base_offset, data in ((0, b"".join(self.batches)), (self.offset, last)):
            file = world.files.open(segment_path(world.path, base_offset, ".log"), create=True)
            file.truncate(0)
            file.write(0, [data])
            file.sync()
        world.files.sync_directory(world.path)
        world.reopen()
        world.checkpoint()

    def compact(self) -> int:
        run = CompactionRun(self.world.log, self.world.config, self.world.clock.time_ms())
        if run.is_due:
            run.finish()
        return run.mapped_end

    def headers(self) -> list[Any]:
        return [parse_header(batch) for batch in self.world.read_all()[:-1]]

    def data(self) -> list[tuple[int, bytes | None]]:
        return [
            (record.offset, record.key)
            for batch in self.world.read_all()[:-1]
            if not parse_header(batch).is_control
            for record in decode_records(batch)
        ]

    def markers(self) -> list[int]:
        return [header.base_offset for header in self.headers() if header.is_control and header.record_count]


@pytest.fixture
def log(world: Any) -> TransactionalLog:
    return TransactionalLog(world)


def test_committed_records_are_compacted_like_any_other(log: TransactionalLog) -> None:
    log.write(-1, b"a")
    log.write(7, b"a", b"b")
    log.end(7, COMMIT)
    log.open()

    assert log.compact() == 4
    assert log.data() == [(1, b"a"), (2, b"b")]
    assert log.markers() == [3]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_aborted_records_go_and_hide_nothing_written_before_them(log: TransactionalLog, codec: Codec) -> None:
    log.write(-1, b"a")
    log.write(7, b"a", b"b", codec=codec)
    log.end(7, ABORT)
    log.write(-1, b"c")
    log.open()

    log.compact()

    assert log.data() == [(0, b"a"), (4, b"c")]


def test_an_aborted_tombstone_deletes_nothing(log: TransactionalLog) -> None:
    log.write(-1, b"a")
    log.write(7, b"a", value=None)
    log.end(7, ABORT)
    log.open()

    log.compact()

    assert log.data() == [(0, b"a")]


def test_nothing_from_an_open_transaction_on_is_touched(log: TransactionalLog) -> None:
    log.write(-1, b"a")
    log.write(-1, b"a")
    log.write(7, b"a")
    log.write(-1, b"b")
    log.write(-1, b"b")
    log.open()

    assert log.compact() == 2
    assert log.data() == [(1, b"a"), (2, b"a"), (3, b"b"), (4, b"b")]
    assert log.world.log.first_dirty_offset == 2


def test_transactions_of_several_producers_are_distinguished(log: TransactionalLog) -> None:
    log.write(7, b"a")
    log.write(8, b"b")
    log.write(7, b"c")
    log.end(8, ABORT)
    log.end(7, COMMIT)
    log.open()

    log.compact()

    assert log.data() == [(0, b"a"), (2, b"c")]


def test_a_producers_transactions_are_distinguished(log: TransactionalLog) -> None:
    log.write(7, b"a")
    log.end(7, ABORT)
    log.write(7, b"b", base_sequence=1)
    log.end(7, COMMIT)
    log.open()

    log.compact()

    assert log.data() == [(2, b"b")]


def test_a_marker_stays_while_a_batch_of_its_transaction_is_left(log: TransactionalLog) -> None:
    log.write(7, b"a")
    log.end(7, COMMIT)
    log.write(-1, b"b")
    log.open()

    for _ in range(3):
        log.world.log.first_dirty_offset = 0
        log.compact()
        log.world.clock.advance(5)

    assert log.markers() == [1]


def test_a_marker_is_removed_some_time_after_its_transactions_last_batch(log: TransactionalLog) -> None:
    log.write(7, b"a")
    log.end(7, COMMIT)
    log.write(-1, b"a")
    log.open()
    log.world.log.producers.clear()  # it has not been heard of for long
    found = []
    for _ in range(4):
        log.world.log.first_dirty_offset = 0
        log.compact()
        found.append((log.data(), log.markers()))
        log.world.clock.advance(DELETE_RETENTION_MS / 1000)

    # The batch goes; then the marker's time begins; then it is over.
    assert found == [([(2, b"a")], [1]), ([(2, b"a")], [1]), ([(2, b"a")], []), ([(2, b"a")], [])]


@pytest.mark.parametrize("kind", [COMMIT, ABORT])
def test_records_with_the_key_of_a_marker_do_not_remove_it_nor_it_them(log: TransactionalLog, kind: int) -> None:
    """KAFKA-14055: the keys of markers are those of the integers 0 and 1 in Kafka's encoding."""
    commit, abort = MARKER_KEY.pack(0, COMMIT), MARKER_KEY.pack(0, ABORT)
    log.write(-1, commit, abort)
    log.write(9, b"aborted")
    log.end(9, ABORT)
    log.write(7, b"a")
    log.end(7, kind)
    log.write(8, b"b")
    log.end(8, kind)
    log.write(-1, b"c")
    log.open()

    log.compact()

    kept = [(4, b"a"), (6, b"b")] if kind == COMMIT else []
    assert log.data() == [(0, commit), (1, abort), *kept, (8, b"c")]
    assert log.markers() == [3, 5, 7]


@pytest.mark.parametrize("kind", [COMMIT, ABORT])
def test_a_later_record_with_the_key_of_a_marker_leaves_the_marker(log: TransactionalLog, kind: int) -> None:
    log.write(7, b"a")
    log.end(7, kind)
    log.write(-1, MARKER_KEY.pack(0, kind))
    log.open()

    log.compact()

    assert log.data() == [*[(0, b"a")] * (kind == COMMIT), (2, MARKER_KEY.pack(0, kind))]
    assert log.markers() == [1]


def test_the_last_batch_of_a_live_producer_stays_without_its_aborted_records(log: TransactionalLog) -> None:
    log.write(7, b"a", b"b", base_sequence=3)
    log.end(7, ABORT)
    log.write(-1, b"c")
    log.open()

    log.compact()

    kept = log.headers()[0]
    assert (kept.producer_id, kept.last_sequence, kept.record_count, kept.last_offset) == (7, 4, 0, 1)


def test_the_other_control_batches_are_left_alone(log: TransactionalLog) -> None:
    log.write(-1, b"a")
    log.write(-1, MARKER_KEY.pack(0, 2), value=b"", is_control=True, base_sequence=-1)
    log.write(-1, b"a")
    log.open()

    log.compact()

    assert [header.is_control for header in log.headers()] == [True, False]


def test_a_compressed_batch_of_malformed_records_stops_the_compaction(world: Any) -> None:
    log = TransactionalLog(world)
    log.write(-1, b"a")
    log.write(-1, b"b", codec=Codec.LZ4)
    payload = compress(Codec.LZ4, b"\x7f no record")
    header = parse_header(log.batches[-1])._replace(batch_length=HEADER_BYTES - LOG_OVERHEAD + len(payload))
    log.batches[-1] = encode_header(header, payload) + payload
    log.open()
    with pytest.raises(CompactionError, match="the batch at offset 1 holds a malformed record"):
        log.compact()
