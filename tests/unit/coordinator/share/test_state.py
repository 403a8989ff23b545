"""The state of a share partition: what an update changes, what it leaves, and what the next snapshot has."""

from __future__ import annotations

from typing import Any

import pytest

from flowstone.coordinator.share.records import (
    Delay,
    DeliveryState,
    LetterRange,
    ShareKey,
    ShareSnapshot,
    ShareUpdate,
    StateBatch,
)
from flowstone.coordinator.share.state import PartitionState

KEY = ShareKey("g", b"t" * 16, 0)
AVAILABLE, ACKNOWLEDGED, ARCHIVED = DeliveryState.AVAILABLE, DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED
SNAPSHOT = ShareSnapshot(KEY, 3, 4, 5, 10, 100, 200, (StateBatch(10, 19, AVAILABLE, 1),), 2)


def state(*delays: int) -> PartitionState:
    made = PartitionState(SNAPSHOT, 9)
    made.delays = {offset: Delay(offset, 1000 + offset) for offset in delays}
    return made


def update(**more: Any) -> ShareUpdate:
    return ShareUpdate(KEY, 3, more.pop("leader_epoch", 5), **more)


def test_the_next_snapshot_has_everything_and_the_next_epoch() -> None:
    made = state(17, 12)
    assert (made.generation, made.update_count) == (9, 0)
    assert made.snapshot(300) == ShareSnapshot(
        KEY, 4, 4, 5, 10, 100, 300, (StateBatch(10, 19, AVAILABLE, 1),), 2, (Delay(12, 1012), Delay(17, 1017))
    )


def test_an_update_leaves_what_it_does_not_name() -> None:
    made = state(12)
    made.update(update(leader_epoch=6))
    assert (made.leader_epoch, made.delivery_complete_count, made.start_offset, made.update_count) == (6, 2, 10, 1)
    assert (made.batches, list(made.delays)) == ([StateBatch(10, 19, AVAILABLE, 1)], [12])
    made.update(update(delivery_complete_count=0))
    assert (made.delivery_complete_count, made.update_count) == (0, 2)


@pytest.mark.parametrize(
    ("first", "last", "left"),
    [
        (12, 12, [11, 13, 14]),
        (11, 12, [13, 14]),
        (12, 14, [11]),
        (12, 19, [11]),
        (10, 11, [12, 13, 14]),
        (10, 18, []),
        (10, 14, []),
        (11, 15, []),
        (14, 19, [11, 12, 13]),
        (15, 19, [11, 12, 13, 14]),
    ],
)
@pytest.mark.parametrize("completed", [ACKNOWLEDGED, ARCHIVED])
def test_records_that_are_completed_have_no_delay(completed: int, first: int, last: int, left: list[int]) -> None:
    made = state(11, 12, 13, 14)
    made.update(update(batches=(StateBatch(first, last, completed, 1),)))
    assert list(made.delays) == left
    made = state(11, 12, 13, 14)
    made.update(update(batches=(StateBatch(first, last, AVAILABLE, 2),)))
    assert list(made.delays) == [11, 12, 13, 14]


def test_a_new_delay_counts_beside_a_completed_record() -> None:
    made = state(11)
    made.update(update(batches=(StateBatch(11, 11, ACKNOWLEDGED, 1),), delays=(Delay(12, 5),)))
    assert made.delays == {12: Delay(12, 5)}


@pytest.mark.parametrize(("start", "left"), [(0, [11, 12]), (11, [11, 12]), (12, [12]), (13, [])])
def test_what_lies_before_the_start_is_forgotten(start: int, left: list[int]) -> None:
    made = state(11, 12)
    made.update(update(start_offset=start))
    assert (made.start_offset, list(made.delays)) == (start, left)
    assert made.batches == [StateBatch(max(10, start), 19, AVAILABLE, 1)]


def test_a_snapshot_with_an_update_leaves_the_state_as_it_is() -> None:
    made = state(11, 12)
    changed = made.snapshot_with(update(start_offset=12, batches=(StateBatch(12, 12, ARCHIVED, 1),)), 300)
    assert (changed.start_offset, changed.delays, changed.write_ms) == (12, (), 300)
    assert changed.batches == (StateBatch(12, 12, ARCHIVED, 1), StateBatch(13, 19, AVAILABLE, 1))
    assert made.snapshot(300).batches == SNAPSHOT.batches
    assert list(made.delays) == [11, 12]


def test_records_that_are_given_up_are_remembered_until_they_are_archived_or_below_the_start() -> None:
    made = state()
    made.update(update(given_up=(LetterRange(10, 13, 2, 0), LetterRange(16, 18, 5, 1))))
    made.update(update(batches=(StateBatch(11, 11, ARCHIVED, 2), StateBatch(17, 19, AVAILABLE, 4))))
    assert made.given_up == [LetterRange(10, 10, 2, 0), LetterRange(12, 13, 2, 0), LetterRange(16, 18, 5, 1)]
    made.update(update(start_offset=13))
    assert made.given_up == [LetterRange(13, 13, 2, 0), LetterRange(16, 18, 5, 1)]
    assert PartitionState(made.snapshot(300), 0).given_up == made.given_up


def test_a_snapshot_with_an_update_leaves_the_records_given_up_as_they_were() -> None:
    made = state()
    made.update(update(given_up=(LetterRange(10, 13, 2, 0),)))
    snapshot = made.snapshot_with(update(batches=(StateBatch(10, 13, ARCHIVED, 2),)), 300)
    assert snapshot.given_up == ()
    assert made.given_up == [LetterRange(10, 13, 2, 0)]
