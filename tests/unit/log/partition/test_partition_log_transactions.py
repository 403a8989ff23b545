"""Transactions in a partition's log: what is stable, what is refused, what a restart and a truncation leave."""

from __future__ import annotations

import dataclasses
import errno
from typing import Any

import pytest

from flowstone.errors import ApiError, ErrorCode
from flowstone.log.partition.partition_log import Appended
from flowstone.log.segments.cached_reads import NotCached, wait_for
from flowstone.log.segments.segment import Segment
from flowstone.wire.end_markers import end_marker
from flowstone.wire.record_batch import Record, build_batch, decode_records, parse_header, prefix

ONE, TWO = 1, 2  # producer ids


class Transactions:
    """Producers that write transactional batches of one record, and the coordinator's markers."""

    def __init__(self, world: Any) -> None:
        self.world = world
        self.sequences: dict[tuple[int, int], int] = {}

    def write(self, producer_id: int, epoch: int = 0, *, version: int = 1) -> int:
        """Append a record to the producer's transaction; return its offset."""
        sequence = self.sequences.get((producer_id, epoch), 0)
        batch = self.world.batch(
            producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, is_transactional=True
        )
        appended: Appended = self.world.log.append(batch, leader_epoch=0, transaction_version=version)
        self.sequences[producer_id, epoch] = sequence + 1
        return appended.base_offset

    def end(
        self, producer_id: int, *, is_commit: bool, epoch: int = 0, coordinator_epoch: int = 5, version: int = 1
    ) -> int:
        marker = end_marker(producer_id, epoch, coordinator_epoch, is_commit, self.world.clock.time_ms())
        appended: Appended = self.world.log.append(marker, leader_epoch=0, is_own=True, transaction_version=version)
        return appended.base_offset

    @property
    def stable_offset(self) -> int:
        offset: int = self.world.log.last_stable_offset(self.world.log.log_end_offset)
        return offset


@pytest.fixture
def transactions(world: Any) -> Transactions:
    return Transactions(world)


def test_a_log_without_transactions_is_stable_up_to_the_high_watermark(world: Any) -> None:
    world.append(10, producer_id=1, producer_epoch=0, base_sequence=0)
    assert world.log.last_stable_offset(4) == 4


def test_an_open_transaction_ends_what_is_stable(world: Any, transactions: Transactions) -> None:
    world.append(3)
    transactions.write(ONE)
    world.append(2)
    transactions.write(TWO)
    assert transactions.stable_offset == 3
    transactions.end(ONE, is_commit=True)
    assert transactions.stable_offset == 6
    transactions.end(TWO, is_commit=False)
    assert transactions.stable_offset == 9


def test_a_transaction_is_stable_once_its_marker_is_replicated(world: Any, transactions: Transactions) -> None:
    transactions.write(ONE)
    marker_offset = transactions.end(ONE, is_commit=True)
    assert [world.log.last_stable_offset(each) for each in (marker_offset, marker_offset + 1)] == [0, 2]


def test_what_is_stable_begins_no_earlier_than_the_log(world: Any, transactions: Transactions) -> None:
    transactions.write(ONE)
    world.append(5)
    world.log.advance_log_start(4)
    assert transactions.stable_offset == 4


def test_a_transactional_batch_of_which_no_coordinator_was_asked_is_refused(world: Any) -> None:
    with pytest.raises(ApiError) as error:
        world.append(producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    assert error.value.code is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_marker_from_a_client_is_refused(world: Any, version: int) -> None:
    with pytest.raises(ApiError) as error:
        world.log.append(end_marker(1, 0, 0, True, 0), leader_epoch=0, transaction_version=version)
    assert error.value.code is ErrorCode.INVALID_RECORD


def test_a_transactional_batch_without_a_producer_is_refused(world: Any) -> None:
    with pytest.raises(ApiError) as error:
        world.log.append(world.batch(is_transactional=True), leader_epoch=0, transaction_version=1)
    assert error.value.code is ErrorCode.INVALID_RECORD


def test_a_refused_marker_leaves_the_log_as_it_was(world: Any, transactions: Transactions) -> None:
    transactions.write(ONE)
    transactions.end(ONE, is_commit=True, coordinator_epoch=5)
    transactions.write(ONE)
    with pytest.raises(ApiError) as error:
        transactions.end(ONE, is_commit=False, coordinator_epoch=4)
    assert error.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert world.log.log_end_offset == 3
    assert transactions.stable_offset == 2


def test_a_late_marker_of_the_second_protocol_does_not_end_the_next_transaction(transactions: Transactions) -> None:
    transactions.write(ONE, version=2)
    transactions.end(ONE, is_commit=True, epoch=1, version=2)
    transactions.write(ONE, 1, version=2)
    with pytest.raises(ApiError) as error:
        transactions.end(ONE, is_commit=True, epoch=1, version=2)
    assert error.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert transactions.stable_offset == 2


def test_a_late_batch_of_the_second_protocol_does_not_open_a_transaction(transactions: Transactions) -> None:
    transactions.write(ONE, version=2)
    transactions.end(ONE, is_commit=True, epoch=1, version=2)
    with pytest.raises(ApiError) as error:
        transactions.write(ONE, 0, version=2)
    assert error.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert transactions.stable_offset == 2


def test_a_coordinators_own_transactional_batch_needs_no_sequence(world: Any, transactions: Transactions) -> None:
    batch = world.batch(producer_id=ONE, producer_epoch=0, is_transactional=True)
    for _ in range(2):
        world.log.append(batch, leader_epoch=0, is_own=True)
    assert transactions.stable_offset == 0
    transactions.end(ONE, is_commit=True)
    assert transactions.stable_offset == 3


@pytest.mark.parametrize("through", ["a crash", "a clean stop", "a truncation", "a replica"])
def test_an_open_transaction_is_known_after(world: Any, transactions: Transactions, through: str) -> None:
    world.append(3)
    transactions.write(TWO)
    transactions.end(TWO, is_commit=False, coordinator_epoch=7)
    transactions.write(ONE)
    world.append()
    if through == "a crash":
        world.reopen()
    elif through == "a clean stop":
        world.stop_cleanly()
        world.reopen(clean=True)
    elif through == "a truncation":
        world.truncate_to(6)
    else:
        batches = world.read_all()
        world.path += "-replica"
        world.log = world.new_log(exists=False)
        world.log.append_replicated(b"".join(batches), leader_epoch=0)
    assert transactions.stable_offset == 5
    with pytest.raises(ApiError) as error:
        transactions.end(TWO, is_commit=False, coordinator_epoch=6)
    assert error.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_a_truncated_marker_opens_its_transaction_again(world: Any, transactions: Transactions) -> None:
    transactions.write(ONE)
    world.append()
    marker_offset = transactions.end(ONE, is_commit=True)
    world.truncate_to(marker_offset)
    assert transactions.stable_offset == 0


def test_a_leaders_marker_decides_a_followers_transaction_within_one_run(world: Any) -> None:
    batches = [
        world.batch(producer_id=ONE, producer_epoch=0, base_sequence=0, is_transactional=True),
        world.batch(3),
        end_marker(ONE, 0, 5, True, 0),
        world.batch(producer_id=TWO, producer_epoch=0, base_sequence=0, is_transactional=True),
    ]
    placed, offset = b"", 0
    for batch in batches:
        header = parse_header(batch)
        placed += prefix(offset, header.batch_length, 0) + batch[16:]
        offset += header.last_offset_delta + 1
    world.log.append_replicated(placed, leader_epoch=0)
    assert world.log.last_stable_offset(offset) == 5


# What was aborted


def aborted(world: Any, start: int, end: int) -> list[tuple[int, int]]:
    return [*map(tuple, wait_for(lambda: world.log.aborted_transactions(start, end)))]


def test_aborted_transactions_are_sorted_by_where_they_began(world: Any, transactions: Transactions) -> None:
    transactions.write(ONE)
    transactions.write(TWO)
    transactions.end(TWO, is_commit=False)
    transactions.end(ONE, is_commit=False)
    assert aborted(world, 0, 4) == [(ONE, 0), (TWO, 1)]


def test_only_transactions_with_records_in_the_range_are_aborted_there(world: Any, transactions: Transactions) -> None:
    for producer_id in (ONE, TWO):
        transactions.write(producer_id)
        transactions.end(producer_id, is_commit=False)
    assert [aborted(world, *each) for each in ((0, 1), (1, 2), (2, 3), (0, 3))] == [
        [(ONE, 0)],
        [(ONE, 0)],
        [(TWO, 2)],
        [(ONE, 0), (TWO, 2)],
    ]


def aborted_in_slice(world: Any, max_bytes: int) -> list[tuple[int, int]]:
    """What a reader of so many bytes from the log's start is told."""
    log = world.log
    records = wait_for(lambda: log.read(0, max_bytes, log.end, at_least_one=True))
    return [*map(tuple, wait_for(lambda: log.aborted_transactions(0, log.log_end_offset, records)))]


def test_a_reader_is_told_of_the_transactions_in_what_it_read(world: Any, transactions: Transactions) -> None:
    world.log.configure(dataclasses.replace(world.config, segment_bytes=1 << 20))
    for _ in range(20):
        transactions.write(ONE)
        transactions.end(ONE, is_commit=False)
    for _ in range(2):  # with indexes of this run, and of an earlier one
        assert len(aborted_in_slice(world, 1 << 20)) == 20
        assert 0 < len(aborted_in_slice(world, 500)) < 10
        world.stop_cleanly()
        world.reopen(clean=True)


def test_an_index_of_an_earlier_run_hides_no_aborted_transaction(world: Any, transactions: Transactions) -> None:
    world.log.configure(dataclasses.replace(world.config, segment_bytes=1 << 20))
    for _ in range(20):
        transactions.write(ONE)
        transactions.end(ONE, is_commit=False)
    told = aborted_in_slice(world, 500)
    world.stop_cleanly()
    world.reopen(clean=True)
    offsets = world.log.segments[-1].indexes.offsets
    for at in range(len(offsets)):  # as if the file said so: in order, and too low
        offsets.keys[at] = at + 1
    assert set(aborted_in_slice(world, 500)) >= set(told)


def test_an_entry_of_this_runs_index_is_believed(
    world: Any, transactions: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        transactions.write(ONE)
        transactions.end(ONE, is_commit=False)
    told = aborted_in_slice(world, 500)
    monkeypatch.setattr(Segment, "_batch_of", None)
    assert aborted_in_slice(world, 500) == told


def test_a_transaction_that_ends_segments_later_is_found(world: Any, transactions: Transactions) -> None:
    transactions.write(ONE)
    while len(world.log.segments) < 4:
        transactions.write(TWO)
        transactions.end(TWO, is_commit=False)
    transactions.end(ONE, is_commit=False)
    assert aborted(world, 0, 1) == [(ONE, 0)]


def test_a_long_search_is_left_to_a_worker(
    world: Any, transactions: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions.write(ONE)
    for _ in range(5):
        transactions.write(TWO)
        transactions.end(TWO, is_commit=False)
    transactions.end(ONE, is_commit=False)
    monkeypatch.setattr("flowstone.log.partition.aborted_transactions.INLINE_ENTRIES_MAX", 3)
    with pytest.raises(NotCached) as missing:
        world.log.aborted_transactions(0, 1)
    missing.value.warm()
    assert world.log.aborted_transactions(0, 1) == [(ONE, 0)]
    with pytest.raises(NotCached):
        world.log.aborted_transactions(0, 1)


def test_what_long_searches_found_is_kept_for_a_limited_number_of_readers(
    world: Any, transactions: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions.write(ONE)
    for _ in range(3):
        transactions.write(TWO)
        transactions.end(TWO, is_commit=False)
    transactions.end(ONE, is_commit=False)
    monkeypatch.setattr("flowstone.log.partition.aborted_transactions.INLINE_ENTRIES_MAX", 1)
    monkeypatch.setattr("flowstone.log.partition.aborted_transactions.FOUND_MAX", 2)
    for end in (2, 3, 4):
        with pytest.raises(NotCached) as missing:
            world.log.aborted_transactions(0, end)
        missing.value.warm()
    assert world.log.aborted_transactions(0, 4) == [(ONE, 0), (TWO, 1), (TWO, 3)]
    with pytest.raises(NotCached):
        world.log.aborted_transactions(0, 2)


def test_a_full_disk_moves_neither_the_stable_offset_nor_the_index(world: Any, transactions: Transactions) -> None:
    transactions.write(ONE)
    world.files.fail_next("write", errno.ENOSPC)
    with pytest.raises(ApiError):
        transactions.end(ONE, is_commit=False)
    assert transactions.stable_offset == 0
    world.files.fail_nothing()
    marker_offset = transactions.end(ONE, is_commit=False)
    assert transactions.stable_offset == marker_offset + 1
    assert aborted(world, 0, 1) == [(ONE, 0)]


def test_a_roll_on_a_full_disk_leaves_the_index_as_it_was(world: Any, transactions: Transactions) -> None:
    transactions.write(ONE)
    transactions.end(ONE, is_commit=False)
    for nth in range(3):  # the indexes, the third of which is that of transactions
        world.files.fail_next("write", errno.ENOSPC, after=nth)
        with pytest.raises(OSError, match="simulated"):
            world.log.roll()
        world.files.fail_nothing()
    transactions.write(ONE)
    transactions.end(ONE, is_commit=False)
    world.log.roll()
    assert aborted(world, 0, 4) == [(ONE, 0), (ONE, 2)]


def test_a_full_index_of_transactions_ends_its_segment(world: Any, transactions: Transactions) -> None:
    world.log.configure(dataclasses.replace(world.config, segment_bytes=1 << 20, segment_index_bytes=34 * 5))
    for _ in range(11):
        transactions.write(ONE)
        transactions.end(ONE, is_commit=False)
    assert [segment.transactions.size_bytes // 34 for segment in world.log.segments] == [5, 5, 1]


def test_a_log_with_a_transaction_has_an_index_of_each_segment(
    world: Any, transactions: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowstone.log.partition.segment_store.OLDER_INDEXES_AT_ONCE_MAX", 2)
    for _ in range(5):
        world.append()
        world.log.roll()
    assert world.names(".txnindex") == []
    transactions.write(ONE)
    world.log.roll()
    transactions.end(ONE, is_commit=True)
    world.log.roll()
    world.log.producers.clear()
    world.append()
    world.log.roll()
    assert world.names(".txnindex") == [
        f"{segment.base_offset:020d}.txnindex" for segment in [*world.log.segments][:-1]
    ]


@pytest.mark.parametrize("at", range(4))
def test_an_index_that_is_gone_is_made_again(world: Any, transactions: Transactions, at: int) -> None:
    for _ in range(4):
        transactions.write(ONE)
        transactions.end(ONE, is_commit=False)
        world.log.roll()
    aborted = wait_for(lambda: world.log.aborted_transactions(0, 8))
    assert len(aborted) == 4
    world.stop_cleanly()
    world.files.remove(f"{world.path}/{world.names('.txnindex')[at]}")
    world.reopen(clean=True)
    assert wait_for(lambda: world.log.aborted_transactions(0, 8)) == aborted


def test_deleted_segments_take_their_indexes_of_transactions_with_them(world: Any, transactions: Transactions) -> None:
    transactions.write(ONE)
    transactions.end(ONE, is_commit=False)
    world.log.roll()
    world.append()
    world.log.advance_log_start(2)
    assert f"{world.path}/{0:020d}.txnindex.deleted" in world.log.drop_segments()
    assert world.names(".txnindex") == []


def test_records_that_look_like_a_marker_end_no_transaction_when_the_log_is_read_again(
    world: Any, transactions: Transactions
) -> None:
    marker = decode_records(memoryview(end_marker(ONE, 0, 5, True, world.clock.time_ms())))[0]
    batch = build_batch(
        [Record(0, world.clock.time_ms(), marker.key, marker.value)],
        producer_id=ONE,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    world.log.append(batch, leader_epoch=0, transaction_version=1)
    world.append()
    assert transactions.stable_offset == 0
    world.reopen()
    assert transactions.stable_offset == 0


def test_a_power_loss_leaves_sealed_indexes_of_transactions(world: Any, transactions: Transactions) -> None:
    for _ in range(20):
        transactions.write(ONE)
        transactions.end(ONE, is_commit=False)
    expected = aborted(world, 0, 40)
    assert len(world.log.segments) > 2
    world.flush()
    world.checkpoint()
    world.files.lose_power()
    world.reopen()
    assert aborted(world, 0, 40) == expected
