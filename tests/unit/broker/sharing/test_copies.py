"""Records that wait for their copies in a dead letter queue: nobody gets them, and they are archived afterwards."""

from __future__ import annotations

from flowstone.broker.sharing.acknowledgements import Acknowledgement, Type
from flowstone.broker.sharing.acquisition import LogBatch
from flowstone.broker.sharing.letters.dead_letters import first_of, without_first
from flowstone.broker.sharing.share_changes import Reason
from flowstone.broker.sharing.share_config import ShareConfig
from flowstone.broker.sharing.share_partition import SharePartition
from flowstone.coordinator.share.records import LetterBatch, LetterRange, StateBatch

CONFIG = ShareConfig(has_dead_letters=True)


def acquired(machine: SharePartition, last: int = 9) -> list[tuple[int, int]]:
    offset = machine.next_offset(0)
    assert offset is not None
    return [(first, end) for first, end, _ in machine.acquire("m", offset, [LogBatch(0, last)], 0, 500, strict=False)]


def test_a_rejected_record_waits_for_its_copy_and_is_archived_with_the_next_write() -> None:
    machine = SharePartition(0, config=CONFIG)
    assert acquired(machine) == [(0, 9)]
    machine.acknowledge("m", [Acknowledgement(0, 3, Type.REJECT), Acknowledgement(4, 9, Type.ACCEPT)], 0)
    letters = machine.copies.take()
    assert letters == [LetterRange(0, 3, 1, Reason.REJECTED)]
    change = machine.take_write()
    assert change is not None
    assert change.start_offset == 0
    machine.written(True, 0)
    machine.copied(letters)
    change = machine.take_write()
    assert change is not None
    assert change.start_offset == 10


def test_a_part_of_the_letters_is_archived_without_the_others() -> None:
    machine = SharePartition(0, config=CONFIG)
    acquired(machine)
    machine.acknowledge("m", [Acknowledgement(0, 9, Type.REJECT)], 0)
    letters = machine.copies.take()
    machine.copies.give_back(without_first(letters, 4))
    machine.copied(first_of(letters, 4))
    change = machine.take_write()
    assert change is not None
    assert change.start_offset == 4
    assert machine.copies.take() == [LetterRange(4, 9, 1, Reason.REJECTED)]


def test_letters_that_were_begun_before_are_not_delivered_and_keep_their_count() -> None:
    machine = SharePartition(0, config=CONFIG, letters=[LetterRange(2, 3, 5, Reason.DELIVERED_TOO_OFTEN)])
    assert acquired(machine) == [(0, 1), (4, 9)]
    assert not machine.copies
    machine.copied([LetterRange(2, 3, 5, Reason.DELIVERED_TOO_OFTEN)])
    change = machine.take_write()
    assert change is not None
    assert (2, 3, 4, 5) in change.batches


def test_letters_below_the_start_are_finished_with_a_write_too() -> None:
    machine = SharePartition(10, config=CONFIG, letters=[LetterRange(2, 3, 5, Reason.REJECTED)])
    machine.copied([LetterRange(2, 3, 5, Reason.REJECTED)])
    assert machine.take_write() is not None


def test_the_sequence_continues_after_the_letters_and_wraps_around() -> None:
    ranges = (LetterRange(0, 3, 1, 0), LetterRange(9, 9, 1, 0))
    assert LetterBatch(b"", 0, 7, 10, 1, ranges).finished() == LetterBatch(b"", 0, 7, 15, 1)
    assert LetterBatch(b"", 0, 7, 2**31 - 3, 1, ranges).finished().base_sequence == 2


def test_a_rejection_is_in_the_next_write_and_its_answer_waits_for_that() -> None:
    machine = SharePartition(0, config=CONFIG)
    acquired(machine)
    assert machine.acknowledge("m", [Acknowledgement(2, 3, Type.REJECT)], 0)
    change = machine.take_write()
    assert change is not None
    assert change.given_up == (LetterRange(2, 3, 1, Reason.REJECTED),)
    assert change.batches == ((2, 3, 0, 0),)


def test_a_record_delivered_too_often_is_given_up_with_the_next_write() -> None:
    machine = SharePartition(0, [StateBatch(0, 0, 0, 4)], config=CONFIG)
    assert acquired(machine, 0) == [(0, 0)]
    machine.release_member("m", 0)
    change = machine.take_write()
    assert change is not None
    assert change.given_up == (LetterRange(0, 0, 5, Reason.DELIVERED_TOO_OFTEN),)


def test_records_given_up_before_are_not_delivered_and_wait_for_their_copies() -> None:
    begun, waiting = LetterRange(2, 3, 5, Reason.REJECTED), LetterRange(5, 6, 1, Reason.REJECTED)
    stored = [StateBatch(2, 4, 0, 0), StateBatch(5, 5, 4, 1)]
    given_up = [begun, waiting, LetterRange(12, 13, 2, Reason.DELIVERED_TOO_OFTEN)]
    machine = SharePartition(0, stored, (), CONFIG, [begun], given_up)
    # 2 and 3 are in a batch that was begun, and 5 was archived since.
    assert machine.copies.take() == [LetterRange(6, 6, 1, 0), LetterRange(12, 13, 2, 1)]
    assert acquired(machine, 14) == [(0, 1), (4, 4), (7, 11), (14, 14)]


def test_a_record_given_up_is_given_up_in_the_write_after_a_failed_one() -> None:
    machine = SharePartition(0, config=CONFIG)
    acquired(machine)
    machine.acknowledge("m", [Acknowledgement(0, 9, Type.REJECT)], 0)
    assert machine.take_write() is not None
    machine.written(False, 0)
    change = machine.take_write()
    assert change is not None
    assert change.given_up == (LetterRange(0, 9, 1, Reason.REJECTED),)
