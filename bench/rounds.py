"""Alternating rounds: both brokers are up and warm while only one is under load, and the order changes each time.

A drift of the machine's speed therefore affects both. Warm-up lasts until two consecutive rounds agree for each broker.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from bench.cases import Case, agree
from bench.load import Figures
from bench.servers import Server
from bench.topics import RoundFailed
from bench.workloads import Workload

WARM_UP_ROUNDS_MAX = 6
WARM_UP_ROUNDS_MIN = 2


class Turns:
    """The rounds of one workload on several brokers; failed ones are listed in `failures` and do not count."""

    def __init__(self, workload: Workload, servers: Mapping[str, Server], failures: list[str]) -> None:
        self._workload = workload
        self._servers = servers
        self._failures = failures
        self._turn = 0
        names = (workload.name, workload.mode.name, workload.variant, workload.headline)
        self.case = Case(*names, rounds={name: [] for name in servers})

    def measure(self, rounds: int) -> Case:
        self._warm_up()
        for _ in range(rounds):
            for name, figures in self._take_turns("counts").items():
                self.case.rounds[name].append(figures)
        return self.case

    def _warm_up(self) -> None:
        before: dict[str, Figures] = {}
        settled: set[str] = set()
        for _ in range(WARM_UP_ROUNDS_MAX):
            now = self._take_turns("warm-up")
            headline = self._workload.headline
            settled |= {
                name for name in now.keys() & before.keys() if agree(before[name][headline], now[name][headline])
            }
            before = now
            if len(settled) == len(self._servers):
                return
        self.case.unsettled = [name for name in self._servers if name not in settled]

    def _take_turns(self, label: str) -> dict[str, Figures]:
        """Run one round on each broker, in the reverse order of the previous time."""
        self._turn += 1
        done: dict[str, Figures] = {}
        for name in list(self._servers)[:: 1 if self._turn % 2 else -1]:
            try:
                done[name] = self._workload.run(self._servers[name])
            except RoundFailed as failure:
                self._failures.append(f"{self.case}: a round ({label}) of {name} does not count: {failure}")
                print(f"  {self._failures[-1]}", file=sys.stderr, flush=True)
                self._servers[name].check_running()
                continue
            headline = self._workload.headline
            shown = f"{label:<8} {name:<10}{done[name][headline]:10.3f} {headline}"
            print(f"  {self.case}: {shown}", file=sys.stderr, flush=True)
        return done
