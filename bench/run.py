"""`python -m bench.run`: Flowstone and Apache Kafka side by side, round by round, and the gates between them.

Both brokers stay up and warm while only one is under load. They take turns within every round, and who goes first
changes with each, so that whatever drifts on the machine drifts for both. docs/benchmarks.md says what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from scripts.fetch_kafka import KAFKA_VERSION, FetchError

from bench import report, wire
from bench.load import RoundFailed, run_round
from bench.servers import Flowstone, Kafka, Server, ServerError
from bench.workers import Load

RESULTS = Path(__file__).with_name("results")
SERVERS: dict[str, type[Server]] = {report.FLOWSTONE: Flowstone, report.KAFKA: Kafka}

BATCH_BYTES = (16_000, 64_000, 1_000_000)
VALUE_BYTES = 100
ROUNDS = 5
QUICK_ROUNDS = 3
QUICK_SHARE = 3  # a quick round is a third of a full one
# The JVM compiles while it runs: with fewer rounds Kafka would be measured cold.
WARM_UP_ROUNDS = 6

NEVER = "9223372036854775807"


@dataclass(frozen=True, slots=True)
class Mode:
    """A promise about the disk, as each broker is told to keep it. Rounds stay small enough to recycle page cache."""

    name: str
    acks: int
    round_bytes: int
    settings: Mapping[str, Mapping[str, str]]


MODES = (
    Mode(report.NOT_FLUSHED, 1, 300_000_000, {report.FLOWSTONE: {"flush.messages": NEVER}, report.KAFKA: {}}),
    Mode(report.FLUSHED, -1, 150_000_000, {report.FLOWSTONE: {}, report.KAFKA: {"log.flush.interval.messages": "1"}}),
)


class Run:
    """A run's choices and what came of them."""

    def __init__(self, brokers: Sequence[str], modes: Sequence[Mode], rounds: int, share: int) -> None:
        self._brokers = brokers
        self._modes = modes
        self._rounds = rounds
        self._share = share
        self.cases: list[report.Case] = []
        self.failures: list[str] = []
        self.peak_rss_mb: dict[str, dict[str, float]] = {}

    def measure(self) -> None:
        for mode in self._modes:
            with ExitStack() as stack:
                servers = {name: SERVERS[name](mode.settings[name]) for name in self._brokers}
                for server in servers.values():
                    stack.enter_context(server)
                for batch_bytes in BATCH_BYTES:
                    self._measure_case(mode, batch_bytes, servers)
                self.peak_rss_mb[mode.name] = {name: server.peak_rss_mb() for name, server in servers.items()}

    def _measure_case(self, mode: Mode, batch_bytes: int, servers: Mapping[str, Server]) -> None:
        case = report.Case(mode.name, batch_bytes, {name: [] for name in servers})
        self.cases.append(case)
        batch = wire.record_batch(batch_bytes, VALUE_BYTES, int(time.time() * 1000))
        load = Load(batch, mode.round_bytes // self._share, mode.acks)
        for turn in range(-WARM_UP_ROUNDS, self._rounds):
            for name in list(servers)[:: 1 if turn % 2 else -1]:
                label = f"round {turn + 1}" if turn >= 0 else "warm-up"
                try:
                    figures = run_round(servers[name], load)
                except RoundFailed as failure:
                    self.failures.append(f"{case}: {label} of {name} does not count: {failure}")
                    print(f"  {self.failures[-1]}", file=sys.stderr, flush=True)
                    servers[name].check_running()
                    continue
                progress = f"{figures.produce_mb_per_s:7.0f} MB/s in {figures.fetch_mb_per_s:7.0f} MB/s out"
                print(f"  {case}: {label:<8} {name:<10}{progress}", file=sys.stderr, flush=True)
                if turn >= 0:
                    case.rounds[name].append(figures)

    def as_dict(self) -> dict[str, object]:
        return {
            "machine": {"cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()},
            "kafka": KAFKA_VERSION,
            "failures": self.failures,
            "missed": self.missed,
            "peak_rss_mb": self.peak_rss_mb,
            "cases": [
                {
                    "mode": case.mode,
                    "batch_bytes": case.batch_bytes,
                    "medians": {each: {m: case.median(each, m) for m in report.METRICS} for each in case.rounds},
                    "ratios": {metric: case.ratio(metric) for metric in report.METRICS},
                    "rounds": {name: [figures.as_dict() for figures in each] for name, each in case.rounds.items()},
                }
                for case in self.cases
            ],
        }

    @property
    def missed(self) -> list[str]:
        """Gates need both brokers: a run of one has none."""
        return report.missed_gates(self.cases) if len(self._brokers) == len(SERVERS) else []


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description="Flowstone and Kafka side by side.")
    parser.add_argument("--rounds", type=int, help=f"rounds that count (default {ROUNDS}, quick {QUICK_ROUNDS})")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller rounds: a hint, not a measurement")
    parser.add_argument("--only", choices=SERVERS, help="measure one broker, without gates")
    parser.add_argument("--mode", choices=[mode.name for mode in MODES], help="measure one mode (default both)")
    chosen = parser.parse_args(words)
    if chosen.rounds is None:
        chosen.rounds = QUICK_ROUNDS if chosen.quick else ROUNDS
    if chosen.rounds < 1:
        parser.error("at least one round is needed")
    return chosen


def main(words: Sequence[str] | None = None) -> int:
    chosen = arguments(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the brokers are stopped
    started, load_average = time.time(), os.getloadavg()[0]
    run = Run(
        brokers=[chosen.only] if chosen.only else list(SERVERS),
        modes=[mode for mode in MODES if chosen.mode in (None, mode.name)],
        rounds=chosen.rounds,
        share=QUICK_SHARE if chosen.quick else 1,
    )
    try:
        run.measure()
    except (ServerError, FetchError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(started))
    result = {"started": stamp, "seconds": time.time() - started, "load_average_before": load_average, **run.as_dict()}
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{stamp}.json"
    file.write_text(json.dumps(result, indent=1) + "\n")
    print(report.table(run.cases))
    print(f"{time.time() - started:.0f} s; load average before: {load_average:.1f}; all figures: {file}")
    problems = [*run.failures, *(f"gate missed: {miss}" for miss in run.missed)]
    print("\n".join(problems), end="\n" if problems else "", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
