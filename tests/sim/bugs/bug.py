"""A bug that a cluster must not have, done to its own functions from here; nothing in `src` knows of it.

A simulation that cannot find such bugs is worthless. Each names what it breaks; `planted` holds it in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from tests.sim.simulation import PLAIN_TRAFFIC, Loads, simulate

Patches = Iterator[Any]


class Bug(NamedTuple):
    plant: Callable[[], Patches]
    # One of these must be what is found.
    caught_as: tuple[str, ...]
    # What brings it to light soonest.
    faults: Sequence[str] | None = None
    # Where to look first: it found the bug before. Every change of what a broker does makes other runs of all seeds.
    first_seed: int = 0
    loads: Loads = PLAIN_TRAFFIC

    @property
    def name(self) -> str:
        return self.plant.__name__


class Found(NamedTuple):
    seed: int
    problem: str


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    with ExitStack() as patches:
        for each in bug.plant():
            patches.enter_context(each)
        yield


def search(bug: Bug, seeds_max: int) -> Found | None:
    """Return the first seed that finds the bug, and what it finds."""
    for seed in range(bug.first_seed, bug.first_seed + seeds_max):
        with planted(bug):
            outcome = simulate(seed, bug.faults, bug.loads, ends_early=True)
        for problem in outcome.problems:
            if problem.startswith(bug.caught_as):
                return Found(seed, problem)
    return None
