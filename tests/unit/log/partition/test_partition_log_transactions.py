"""Transactions in a partition's log: what is stable, what is refused, what a restart and a truncation leave."""

from __future__ import annotations

from typing import Any

import pytest

from flowstone.errors import ApiError, ErrorCode
from flowstone.log.partition.partition_log import Appended
from flowstone.wire.end_markers import end_marker
from flowstone.wire.record_batch import parse_header, prefix

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
