"""Callbacks that wait for an offset, and watchers of a partition."""

from __future__ import annotations

from flowstone.errors import ErrorCode
from flowstone.replication.waiters import NO_WAITERS, Waiters, Watchers, add_waiter, answer_all, answer_reached
from tests.unit.replication.replicas import Watcher


def waiting(told: list[tuple[int, ErrorCode]], *offsets: int) -> Waiters:
    waiters = NO_WAITERS
    for offset in offsets:
        waiters = add_waiter(waiters, offset, lambda code, at=offset: told.append((at, code)))  # type: ignore[misc]
    return waiters


def test_those_that_wait_for_an_offset_up_to_the_one_reached_are_told_in_order_and_once() -> None:
    told: list[tuple[int, ErrorCode]] = []
    waiters = waiting(told, 3, 5, 5, 6)
    answer_reached(waiters, 2)
    assert told == []
    answer_reached(waiters, 5)
    answer_reached(waiters, 5)
    assert told == [(3, ErrorCode.NONE), (5, ErrorCode.NONE), (5, ErrorCode.NONE)]
    assert [offset for offset, _ in waiters] == [6]


def test_partitions_that_never_had_a_waiter_share_one_empty_queue() -> None:
    first, second = waiting([], 1), waiting([], 2)
    assert len(first) == len(second) == 1
    assert len(NO_WAITERS) == 0
    assert add_waiter(first, 2, lambda code: None) is first


def test_all_are_told_why_the_offset_may_never_be_reached_but_not_those_that_come_meanwhile() -> None:
    told: list[tuple[int, ErrorCode]] = []
    waiters = waiting(told, 3)
    add_waiter(waiters, 4, lambda code: add_waiter(waiters, 9, lambda again: told.append((9, again))) and None)
    add_waiter(waiters, 5, lambda code: told.append((5, code)))
    answer_all(waiters, ErrorCode.KAFKA_STORAGE_ERROR)
    assert told == [(3, ErrorCode.KAFKA_STORAGE_ERROR), (5, ErrorCode.KAFKA_STORAGE_ERROR)]
    assert [offset for offset, _ in waiters] == [9]


def test_watchers_are_told_until_they_are_removed() -> None:
    watchers, one, other = Watchers(), Watcher(), Watcher()
    watchers.watch(one)
    watchers.watch(one)
    watchers.watch(other)
    assert len(watchers) == 2
    watchers.advanced(10)
    watchers.interrupted()
    watchers.unwatch(other)
    watchers.unwatch(other)
    watchers.advanced(5)
    watchers.interrupted()
    assert (one.size_bytes, one.interruptions) == (15, 2)
    assert (other.size_bytes, other.interruptions) == (10, 1)
