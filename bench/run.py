"""`python -m bench.run`: Flowstone and Apache Kafka side by side, and the gates between them.

Writes JSON (every round), Markdown (verdicts, medians, ratios) and SVG (ratios) to bench/results.
docs/benchmarks.md says what is measured and why so.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from scripts.fetch_kafka import KAFKA_VERSION, FetchError

from bench import plot, report, workloads
from bench.cases import Case
from bench.gates import MEMORY, Verdict, verdicts
from bench.modes import FLOWSTONE, KAFKA, MODES, Mode
from bench.rounds import Turns
from bench.servers import Flowstone, Kafka, Server, ServerError

RESULTS = Path(__file__).with_name("results")
SERVERS: dict[str, type[Server]] = {FLOWSTONE: Flowstone, KAFKA: Kafka}

ROUNDS = 5
QUICK_ROUNDS = 3
QUICK_SHARE = 3  # a quick round is a third of a full one


class Run:
    """A run's choices and what came of them."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self._brokers = [chosen.only] if chosen.only else list(SERVERS)
        self._modes = [mode for mode in MODES if chosen.mode in (None, mode.name)]
        self._names = chosen.only_workload or workloads.NAMES
        self._quick = chosen.quick
        self._rounds = chosen.rounds
        self.cases: list[Case] = []
        self.failures: list[str] = []

    def measure(self) -> None:
        for mode in self._modes:
            with ExitStack() as stack:
                servers = {
                    name: stack.enter_context(SERVERS[name](mode.settings[name])) for name in self._brokers
                }  # fmt: skip
                for workload in workloads.catalogue(mode, QUICK_SHARE if self._quick else 1):
                    if workload.name in self._names and (workload.gated or not self._quick):
                        turns = Turns(workload, servers, self.failures)
                        self.cases.append(turns.case)
                        turns.measure(self._rounds)
                self.cases.append(_memory(mode, servers))

    @property
    def verdicts(self) -> list[Verdict]:
        """They need both brokers: a run of one has none."""
        return verdicts(self.cases) if len(self._brokers) == len(SERVERS) else []

    @property
    def problems(self) -> list[str]:
        missed = [verdict for verdict in self.verdicts if verdict.gate.binding and not verdict.passed]
        return [*self.failures, *(f"gate missed: {verdict}" for verdict in missed)]


def _memory(mode: Mode, servers: dict[str, Server]) -> Case:
    """The most that each broker held since it started, under all the loads of a mode."""
    rounds = {name: [{"peak_rss_mb": server.peak_rss_mb()}] for name, server in servers.items()}
    return Case(MEMORY, mode.name, "under all of the above", "peak_rss_mb", rounds)


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description="Flowstone and Kafka side by side.")
    parser.add_argument("--rounds", type=int, help=f"rounds that count (default {ROUNDS}, quick {QUICK_ROUNDS})")
    parser.add_argument("--quick", action="store_true", help="gated workloads, smaller rounds: a hint while you work")
    parser.add_argument("--only", choices=SERVERS, help="measure one broker, without gates")
    parser.add_argument("--mode", choices=[mode.name for mode in MODES], help="measure one mode (default both)")
    parser.add_argument(
        "--only-workload", choices=workloads.NAMES, action="append", help="measure this one; repeatable"
    )
    parser.add_argument("--name", help="of the result files (default: the hour, which is not kept)")
    chosen = parser.parse_args(words)
    if chosen.rounds is None:
        chosen.rounds = QUICK_ROUNDS if chosen.quick else ROUNDS
    if chosen.rounds < 1:
        parser.error("at least one round is needed")
    return chosen


def main(words: Sequence[str] | None = None) -> int:
    chosen = arguments(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the brokers are stopped
    started, load_before = time.time(), os.getloadavg()[0]
    run = Run(chosen)
    try:
        run.measure()
    except (ServerError, FetchError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(started))
    about = {
        "started": stamp,
        "seconds": round(time.time() - started),
        "load average before": round(load_before, 2),
        "load average at the end (of the benchmark itself too)": round(os.getloadavg()[0], 2),
        "machine": f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}",
        "Apache Kafka": KAFKA_VERSION,
        "rounds that did not count": len(run.failures),
    }
    write(chosen.name or stamp, about, run)
    print("\n".join(run.problems), end="\n" if run.problems else "", file=sys.stderr)
    return 1 if run.problems else 0


def write(name: str, about: dict[str, object], run: Run) -> None:
    title = "Flowstone and Apache Kafka side by side"
    page = report.page(title, [f"{key}: {value}" for key, value in about.items()], run.cases, run.verdicts)
    result = {**about, "problems": run.problems, "cases": [case.as_dict() for case in run.cases]}
    RESULTS.mkdir(exist_ok=True)
    files = {"json": json.dumps(result, indent=1) + "\n", "md": page, "svg": plot.svg(title, run.cases)}
    for ending, text in files.items():
        (RESULTS / f"{name}.{ending}").write_text(text)
    print(page)
    print(f"All figures: {RESULTS / name}.json, .md, .svg")


if __name__ == "__main__":
    sys.exit(main())
