"""The promises G1 to G5 over many random lives of groups. A failure names its seed.

FLOWSTONE_GROUP_SEEDS=first:count runs others, or more: FLOWSTONE_GROUP_SEEDS=2000:100000, say.
"""

from __future__ import annotations

import os

import pytest

from tests.unit.coordinator.groups.simulation import World

SEEDS_PER_TEST = 250
FIRST, COUNT = (int(number) for number in os.environ.get("FLOWSTONE_GROUP_SEEDS", "0:2000").split(":"))


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, SEEDS_PER_TEST))
def test_groups_keep_their_promises_whatever_befalls_them(first: int) -> None:
    for seed in range(first, min(first + SEEDS_PER_TEST, FIRST + COUNT)):
        try:
            World(seed).run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
