"""Alternating rounds for Spark systems, as `bench.rounds` has for brokers; the first rounds do not count."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.cases import Case
from bench.load import Figures
from bench.spark.systems import System

WARM_UP_ROUNDS = 1


@dataclass(frozen=True, slots=True)
class Work:
    """A workload; `run` is one round on a system."""

    workload: str
    mode: str
    variant: str
    headline: str
    run: Callable[[System], Figures]


def measure(work: Work, systems: Sequence[System], rounds: int) -> Case:
    """Run the rounds and return the case. Raises RoundFailed if a system loses rows, which ends the run."""
    case = Case(work.workload, work.mode, work.variant, work.headline, {system.name: [] for system in systems})
    for number in range(WARM_UP_ROUNDS + rounds):
        for system in systems[:: 1 if number % 2 else -1]:
            figures = work.run(system)
            if number >= WARM_UP_ROUNDS:
                case.rounds[system.name].append(figures)
            shown = f"{system.name:<20}{figures[work.headline]:14,.1f} {work.headline}"
            print(f"  {case}: {'counts ' if number >= WARM_UP_ROUNDS else 'warm-up'} {shown}", file=sys.stderr)
    return case
