"""Random histories of compacted logs against a model of a few lines: C1 to C3 and C5, with crashes at every step."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.compaction_history import run_history

SEEDS = int(os.environ.get("FLOWSTONE_COMPACTION_SEEDS", "2000"))
SEEDS_PER_TEST = 250


@pytest.mark.parametrize("first_seed", range(0, SEEDS, SEEDS_PER_TEST))
def test_a_compacted_log_is_what_the_model_says(make_world: Callable[..., Any], first_seed: int) -> None:
    for seed in range(first_seed, first_seed + SEEDS_PER_TEST):
        run_history(make_world, seed)
