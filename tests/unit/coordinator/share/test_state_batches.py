"""Changes of state batches, compared with a dict of offsets."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from flowstone.coordinator.share.records import StateBatch
from flowstone.coordinator.share.state_batches import cut_before, overlay

OFFSETS = 40


def per_offset(batches: list[StateBatch]) -> dict[int, tuple[int, int]]:
    return {offset: (batch[2], batch[3]) for batch in batches for offset in range(batch[0], batch[1] + 1)}


def test_random_changes_leave_what_a_dict_of_offsets_has() -> None:
    random = Random(1)
    for _ in range(200):
        batches: list[StateBatch] = []
        model: dict[int, tuple[int, int]] = {}
        for _ in range(12):
            if random.random() < 0.2:
                start = random.randrange(OFFSETS)
                cut_before(batches, start)
                model = {offset: value for offset, value in model.items() if offset >= start}
            else:
                first = random.randrange(OFFSETS)
                update = StateBatch(
                    first, first + random.randrange(8), random.choice((0, 2, 4)), random.randrange(1, 3)
                )
                overlay(batches, [update])
                model |= per_offset([update])
            assert per_offset(batches) == model
            assert all(left.last_offset < right.first_offset for left, right in pairwise(batches))


def test_neighbours_that_are_alike_become_one() -> None:
    batches: list[StateBatch] = []
    overlay(batches, [StateBatch(0, 1, 2, 1), StateBatch(4, 5, 2, 1), StateBatch(2, 3, 2, 1)])
    assert batches == [StateBatch(0, 5, 2, 1)]
