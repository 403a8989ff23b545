"""The promises P1 to P6 over many random lives of a consumer group, also with members of the classic protocol.

A failure names its seed.

FLOWSTONE_CONSUMER_GROUP_SEEDS=first:count runs others, or more: FLOWSTONE_CONSUMER_GROUP_SEEDS=0:10000, say.
"""

from __future__ import annotations

import os

import pytest

from tests.unit.coordinator.groups.consumer.mixed_simulation import MixedWorld
from tests.unit.coordinator.groups.consumer.simulation import World
from tests.unit.coordinator.groups.consumer.sliced_simulation import SlicedWorld

SEEDS_PER_TEST = 100
FIRST, COUNT = (int(number) for number in os.environ.get("FLOWSTONE_CONSUMER_GROUP_SEEDS", "0:100").split(":"))


@pytest.mark.parametrize("world", [World, MixedWorld])
@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, SEEDS_PER_TEST))
def test_consumer_groups_keep_their_promises_whatever_befalls_them(first: int, world: type[World]) -> None:
    for seed in range(first, min(first + SEEDS_PER_TEST, FIRST + COUNT)):
        try:
            world(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, SEEDS_PER_TEST))
def test_consumer_groups_keep_their_promises_while_targets_are_stored_in_parts(first: int) -> None:
    stored_parts = 0
    for seed in range(first, min(first + SEEDS_PER_TEST, FIRST + COUNT)):
        world = SlicedWorld(seed)
        try:
            world.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
        stored_parts += world.stored_parts
    assert stored_parts
