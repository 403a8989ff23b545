"""`python -m bench.run`: compares Flowstone with Apache Kafka and checks the gates.

Writes JSON (every round), Markdown (verdicts, medians, ratios) and SVG (ratios) to bench/results; docs/benchmarks.md
describes the workloads and the method.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from scripts.fetch_kafka import KAFKA_VERSION

from bench import workloads
from bench.cases import Case
from bench.command import Outcome, carry_out
from bench.gates import MEMORY, verdicts
from bench.modes import FLOWSTONE, KAFKA, MODES, Mode
from bench.rounds import Turns
from bench.servers import Flowstone, Kafka, Server

TITLE = "Flowstone and Apache Kafka side by side"
SERVERS: dict[str, type[Server]] = {FLOWSTONE: Flowstone, KAFKA: Kafka}

ROUNDS = 5
QUICK_ROUNDS = 3
QUICK_SHARE = 3  # a quick round is a third of a full one


class Run:
    """The options of a run."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self._brokers = [chosen.only] if chosen.only else list(SERVERS)
        self._modes = [mode for mode in MODES if chosen.mode in (None, mode.name)]
        self._names = chosen.only_workload or workloads.NAMES
        self._quick = chosen.quick
        self._rounds = chosen.rounds

    def measure(self) -> Outcome:
        cases: list[Case] = []
        failures: list[str] = []
        for mode in self._modes:
            with ExitStack() as stack:
                servers = {
                    name: stack.enter_context(SERVERS[name](mode.settings[name])) for name in self._brokers
                }  # fmt: skip
                for workload in workloads.catalogue(mode, QUICK_SHARE if self._quick else 1):
                    if workload.name in self._names and (workload.gated or not self._quick):
                        turns = Turns(workload, servers, failures)
                        cases.append(turns.case)
                        turns.measure(self._rounds)
                cases.append(_memory(mode, servers))
        # Gates need both brokers: a run of one has none.
        return Outcome(cases, verdicts(cases) if len(self._brokers) == len(SERVERS) else [], failures)


def _memory(mode: Mode, servers: dict[str, Server]) -> Case:
    """Return the maximum memory of each broker since its start, under all workloads of a mode."""
    rounds = {name: [{"peak_rss_mb": server.peak_rss_mb()}] for name, server in servers.items()}
    return Case(MEMORY, mode.name, "under all of the above", "peak_rss_mb", rounds)


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description="Flowstone and Kafka side by side.")
    parser.add_argument("--rounds", type=int, help=f"counted rounds (default {ROUNDS}, quick {QUICK_ROUNDS})")
    parser.add_argument("--quick", action="store_true", help="gated workloads in smaller rounds, for a quick estimate")
    parser.add_argument("--only", choices=SERVERS, help="measure one broker, without gates")
    parser.add_argument("--mode", choices=[mode.name for mode in MODES], help="measure one mode (default both)")
    parser.add_argument(
        "--only-workload", choices=workloads.NAMES, action="append", help="measure this one; repeatable"
    )
    parser.add_argument("--name", help="name of the result files (default: the current time, ignored by git)")
    chosen = parser.parse_args(words)
    if chosen.rounds is None:
        chosen.rounds = QUICK_ROUNDS if chosen.quick else ROUNDS
    if chosen.rounds < 1:
        parser.error("at least one round is needed")
    return chosen


def main(words: Sequence[str] | None = None) -> int:
    chosen = arguments(words)
    return carry_out(Run(chosen).measure, TITLE, chosen.name, {"Apache Kafka": KAFKA_VERSION})


if __name__ == "__main__":
    sys.exit(main())
