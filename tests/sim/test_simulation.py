"""A whole cluster, simulated from seeds: nothing may be wrong in any of them, and each can be had again."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# A slice of `make sim`, which runs ten thousand.
SEEDS = int(os.environ.get("FLOWSTONE_SIM_SEEDS", "60"))
SECONDS_MAX = 20
SEEDS_MIN = 30


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.sim.run", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.timeout(900)
def test_no_seed_finds_anything_wrong() -> None:
    """So many seeds, or as many as the time allows, but no fewer than the least."""
    ran = run("--seeds", SEEDS, "--seconds", SECONDS_MAX, "--least", min(SEEDS, SEEDS_MIN))
    print(ran.stdout)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_seed_gives_the_same_run_in_every_process() -> None:
    first, second = run("--story", 7), run("--story", 7)
    assert "digest" in first.stdout, first.stderr
    assert first.stdout == second.stdout
