"""`python -m bench.groups`: the costs of consumer groups, partly compared with Apache Kafka, with gates.

Rebalances are measured on both brokers alternately, after a warm-up. The other figures have absolute limits for a
broker in Python.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from bench import commits, offset_loading, rebalances, shared_reads
from bench.load import Figures
from bench.servers import Flowstone, Kafka, Server

REBALANCES = ((10, 100), (100, 1000))  # members, partitions
WARM_UP_ROUNDS = 10
ROUNDS = 15
COMMITTING_GROUPS, COMMITTED_PARTITIONS, COMMIT_SECONDS = 1000, 10, 10
PARTS = ("rebalances", "commits", "loading", "reads")


@dataclass(frozen=True, slots=True)
class Gate:
    what: str
    value: float
    limit: float

    @property
    def holds(self) -> bool:
        return self.value <= self.limit

    def __str__(self) -> str:
        return f"{'passed' if self.holds else 'MISSED'}  {self.what}: {self.value:.3g}, at most {self.limit:.3g}"


def measure_rebalances(ours: Server, theirs: Server) -> list[Gate]:
    gates = []
    for member_count, partitions in REBALANCES:
        medians = []
        with ExitStack() as stack:
            both = [
                stack.enter_context(rebalances.connected(each, member_count, partitions)) for each in (ours, theirs)
            ]
            rounds = [[members.rebalance() for members in both] for _ in range(WARM_UP_ROUNDS + ROUNDS)]
        for server, seconds in zip((ours, theirs), zip(*rounds[WARM_UP_ROUNDS:], strict=True), strict=True):
            medians.append(statistics.median(seconds))
            shown = {"median_ms": medians[-1] * 1e3, "longest_ms": max(seconds) * 1e3}
            _print(f"rebalance of {member_count} members x {partitions} partitions, {server.name}", shown)
        name = f"rebalance of {member_count} x {partitions} / Kafka"
        gates.append(Gate(name, medians[0] / medians[1], limit=1.0))
    return gates


def measure_commits(ours: Server, theirs: Server | None) -> list[Gate]:
    figures: Figures = {}
    for server in (theirs, ours) if theirs is not None else (ours,):
        figures = commits.run_round(server, COMMITTING_GROUPS, COMMITTED_PARTITIONS, COMMIT_SECONDS)
        _print(f"{COMMITTING_GROUPS} groups x {COMMITTED_PARTITIONS} partitions every second, {server.name}", figures)
    return [
        Gate("percent of a core for the commits", figures["cpu_percent_of_a_core"], limit=25),
        Gate("p99 of a commit, ms", figures["commit_p99_ms"], limit=50),
    ]


def measure_loading(ours: Server) -> list[Gate]:
    figures = offset_loading.run(ours)
    _print("a start with a million committed offsets", figures)
    return [
        Gate("seconds to start with them", figures["loaded_seconds"], limit=5),
        Gate("p99.9 of a request afterwards, ms", figures["loop_p99.9_ms"], limit=20),
    ]


def measure_reads(ours: Server) -> list[Gate]:
    figures = shared_reads.run(ours)
    _print(f"{shared_reads.GROUPS} groups read the same topic", figures)
    return [
        Gate("share of the topic that ten groups add to the disk", _share(figures, "disk_growth_kb") / 1e3, limit=0.01),
        Gate("share of nine reads that came from the disk", _share(figures, "other_groups_read_from_disk_mb"), 0.01),
    ]


def _share(figures: Figures, name: str) -> float:
    return figures[name] / figures["topic_mb"]


def _print(title: str, figures: Figures) -> None:
    print(f"{title}:", ", ".join(f"{name} {value:,.4g}" for name, value in figures.items()), flush=True)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.groups", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="the parts to measure; default: all")
    parts = parser.parse_args(words).parts or PARTS
    gates: list[Gate] = []
    if {"rebalances", "commits"} & set(parts):
        with Flowstone(rebalances.NO_DELAY) as ours, Kafka(rebalances.NO_DELAY) as theirs:
            if "rebalances" in parts:
                gates += measure_rebalances(ours, theirs)
            if "commits" in parts:
                gates += measure_commits(ours, theirs)
    for name, measure in (("loading", measure_loading), ("reads", measure_reads)):
        if name in parts:
            with Flowstone({}) as ours:
                gates += measure(ours)
    for gate in gates:
        print(gate)
    return 0 if all(gate.holds for gate in gates) else 1


if __name__ == "__main__":
    sys.exit(main())
