"""`python -m bench.cluster`: a Flowstone cluster with a ZooKeeper and an Apache Kafka cluster, three brokers each.

One cluster runs at a time, because two do not fit on two cores. A pass starts each in turn, warms it up, measures it,
kills one of its brokers and removes it; the order is reversed from pass to pass, and pass `n` kills broker `n`, whether
or not it is the controller. Writes JSON (every round), Markdown and SVG to bench/results; see docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from scripts.fetch_kafka import KAFKA_VERSION

from bench import cluster_failover, cluster_load, report
from bench.cases import Case, agree
from bench.cluster_gates import DEFAULTS, EQUAL, FAILOVER, IDLE, MANY, SYNCHRONOUS, THROUGHPUT, verdicts
from bench.cluster_servers import BROKERS, Cluster, FlowstoneCluster, KafkaCluster
from bench.command import Outcome, carry_out
from bench.load import Figures
from bench.modes import FLOWSTONE, KAFKA, NEVER
from bench.topics import RoundFailed

TITLE = "Clusters of three: Flowstone and Apache Kafka"
PASSES = BROKERS
TIME_MAX_SECONDS = 480
MANY_SECONDS = 45  # excluded from earlier measurements
WARM_UP_ROUNDS_MAX = 5
ROUNDS = 2  # of each pass
RECORDS = 60_000
REQUESTS = 1_000
QUICK_SHARE = 3

VARIANTS = {
    THROUGHPUT: f"confluent-kafka, 1 KB records, {BROKERS} replicas, acks=all",
    SYNCHRONOUS: f"one record in flight, {BROKERS} replicas, acks=all",
    FAILOVER: "kill -9 of a broker that leads, under load",
    MANY: "kill -9 of a broker that leads a third of them",
    IDLE: f"{BROKERS} brokers and what they need",
}
HEADLINES = {THROUGHPUT: "produce_mb_per_s", SYNCHRONOUS: "p50_ms", FAILOVER: "longest_gap_s",
             MANY: "all_acknowledged_s", IDLE: "rss_mb"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Subject:
    """A cluster and the comparisons for which its figures are used."""

    broker: str
    kind: type[Cluster]
    settings: Mapping[str, str]
    modes: Sequence[str]

    @property
    def is_as_started(self) -> bool:
        return DEFAULTS in self.modes


SUBJECTS = (
    Subject(KAFKA, KafkaCluster, {}, (EQUAL, DEFAULTS)),
    Subject(FLOWSTONE, FlowstoneCluster, {"flush.messages": NEVER}, (EQUAL,)),
    Subject(FLOWSTONE, FlowstoneCluster, {}, (DEFAULTS,)),
)


class Run:
    """The options and results of one run."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self._subjects = [each for each in SUBJECTS if chosen.only in (None, each.broker)]
        self._passes: int = chosen.passes
        self._share = QUICK_SHARE if chosen.quick else 1
        self._only: list[str] = chosen.only_workload or list(VARIANTS)
        self._cases: dict[tuple[str, str], Case] = {}
        self._failures: list[str] = []

    def measure(self) -> Outcome:
        started, longest = time.monotonic(), 0.0
        for number in range(1, self._passes + 1):
            pass_started = time.monotonic()
            if pass_started + longest > started + TIME_MAX_SECONDS - MANY_SECONDS:
                self._say(f"no time for pass {number}")
                break
            for subject in self._subjects[:: 1 if number % 2 else -1]:
                self._measure(subject, victim=(number - 1) % BROKERS + 1)
            longest = max(longest, time.monotonic() - pass_started)
        as_started = self._subjects[-1]
        if MANY in self._only and as_started.broker == FLOWSTONE:
            with FlowstoneCluster() as cluster:
                self._round(as_started, MANY, partial(cluster_failover.many_partitions, cluster, victim=1))
        cases = list(self._cases.values())
        return Outcome(cases, verdicts(cases) if len(self._subjects) == len(SUBJECTS) else [], self._failures)

    def _measure(self, subject: Subject, victim: int) -> None:
        """Start one cluster, measure it and remove it."""
        os.sync()
        with subject.kind(subject.settings) as cluster:
            if subject.is_as_started:
                self._round(subject, IDLE, lambda: {"rss_mb": cluster.rss_mb()})
            self._warm_rounds(
                subject, THROUGHPUT, partial(cluster_load.throughput, cluster, RECORDS // self._share), ROUNDS
            )
            self._warm_rounds(
                subject, SYNCHRONOUS, partial(cluster_load.synchronous, cluster, REQUESTS // self._share), ROUNDS
            )
            if subject.is_as_started:
                self._round(subject, FAILOVER, partial(cluster_failover.longest_gap, cluster, victim))
            cluster.check_running()

    def _warm_rounds(self, subject: Subject, workload: str, measure: Callable[[], Figures], rounds: int) -> None:
        """Run rounds and keep those after two consecutive ones that agree: a JVM compiles while it runs."""
        if workload not in self._only:
            return
        before = 0.0
        for _ in range(WARM_UP_ROUNDS_MAX):
            figures = self._try(subject, workload, measure)
            now = figures[HEADLINES[workload]] if figures is not None else 0.0
            if agree(before, now):
                break
            before = now
        else:
            for mode in subject.modes:
                unsettled = self._case(workload, mode).unsettled
                if subject.broker not in unsettled:
                    unsettled.append(subject.broker)
        for _ in range(rounds):
            self._round(subject, workload, measure)

    def _round(self, subject: Subject, workload: str, measure: Callable[[], Figures]) -> None:
        if workload not in self._only:
            return
        # Registered before it runs: a workload without a counted round misses its gates.
        counted = [self._case(workload, mode).rounds.setdefault(subject.broker, []) for mode in subject.modes]
        figures = self._try(subject, workload, measure)
        if figures is None:
            return
        for rounds in counted:
            rounds.append(figures)
        shown = ", ".join(f"{name} {report.number(value)}" for name, value in figures.items())
        self._say(f"{workload}, {subject.modes[-1]}: {subject.broker}: {shown}")

    def _try(self, subject: Subject, workload: str, measure: Callable[[], Figures]) -> Figures | None:
        try:
            return measure()
        except RoundFailed as failure:
            self._failures.append(f"{workload}: a round of {subject.broker} does not count: {failure}")
            self._say(self._failures[-1])
            return None

    def _case(self, workload: str, mode: str) -> Case:
        made = Case(workload, mode, VARIANTS[workload], HEADLINES[workload])
        return self._cases.setdefault((workload, mode), made)

    def _say(self, text: str) -> None:
        print(f"  {text}", file=sys.stderr, flush=True)


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description="Clusters of three, side by side.")
    parser.add_argument(
        "--passes", type=int, default=PASSES, help=f"how often each cluster is started (default {PASSES})"
    )
    parser.add_argument("--quick", action="store_true", help="smaller rounds, for a quick estimate")
    parser.add_argument("--only", choices=(FLOWSTONE, KAFKA), help="measure one, without gates")
    parser.add_argument("--only-workload", choices=VARIANTS, action="append", help="measure this one; repeatable")
    parser.add_argument("--name", help="name of the result files (default: the current time, ignored by git)")
    chosen = parser.parse_args(words)
    if chosen.passes < 1:
        parser.error("at least one pass is needed")
    return chosen


def main(words: Sequence[str] | None = None) -> int:
    chosen = arguments(words)
    facts = {"Apache Kafka": f"{KAFKA_VERSION}, {BROKERS} nodes, each broker and controller"}
    return carry_out(Run(chosen).measure, TITLE, chosen.name, facts)


if __name__ == "__main__":
    sys.exit(main())
