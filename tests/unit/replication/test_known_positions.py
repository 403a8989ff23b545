"""Which positions of offsets are known without a look at an index."""

from __future__ import annotations

from flowstone.log.partition.partition_log import LogPosition, PartitionLog
from flowstone.replication.known_positions import NOT_LOOKED_UP, REMEMBERED_ENDS_MAX, KnownPositions
from tests.support.partitions import ON_DISK, a_batch, a_log


def filled(*counts: int) -> tuple[PartitionLog, KnownPositions, list[LogPosition]]:
    """A log with appends of so many records, all remembered, and the ends after each of them."""
    log = a_log(ON_DISK)
    known, ends = KnownPositions(log), []
    for count in counts:
        log.append(a_batch(count), leader_epoch=0)
        known.remember_end()
        ends.append(log.end)
    return log, known, ends


def test_the_ends_of_appends_are_known_and_offsets_between_them_are_not() -> None:
    _, known, ends = filled(2, 3, 4)
    assert known.place(2) == ends[0]
    assert known.place(3) == LogPosition(3, NOT_LOOKED_UP, 0)
    assert known.place(5) == ends[1]
    assert known.place(9) == ends[2]


def test_positions_below_the_one_asked_for_are_forgotten() -> None:
    _, known, ends = filled(2, 3, 4)
    assert known.place(5) == ends[1]
    assert known.place(5) == ends[1]
    assert known.place(2) == LogPosition(2, NOT_LOOKED_UP, 0)


def test_the_end_of_the_log_and_of_what_is_flushed_are_known_without_being_remembered() -> None:
    log, known, ends = filled(2, 3)
    known.forget()
    assert known.place(5) == ends[1]
    assert known.place(2) == LogPosition(2, NOT_LOOKED_UP, 0)
    log.flushed_end = ends[0]
    assert known.place(2) == ends[0]


def test_what_is_forgotten_of_a_log_that_never_had_an_append_stays_with_it() -> None:
    first, second = KnownPositions(a_log(ON_DISK)), KnownPositions(a_log(ON_DISK))
    first.remember_end()
    second.forget()
    assert len(first._ends) == 1


def test_the_latest_ends_are_remembered_up_to_a_limit() -> None:
    log, known, ends = filled(*[1] * (REMEMBERED_ENDS_MAX + 1))
    log.append(a_batch(), leader_epoch=0)
    assert known.place(1) == LogPosition(1, NOT_LOOKED_UP, 0)
    assert known.place(2) == ends[1]
