"""`python -m bench.queues`: share groups of Flowstone and Apache Kafka side by side, with gates.

Kafka's own share consumers read one partition. Measured are records per second and the broker's processor time with 1,
8 and 64 consumers, which acknowledge in batches or one by one, the time from produce to delivery, and what ordering by
key costs (Flowstone only). Writes JSON, Markdown and SVG to bench/results; docs/benchmarks.md
describes the method.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from scripts.fetch_kafka import KAFKA_VERSION

from bench.cases import Case
from bench.command import Outcome, carry_out
from bench.connection import Connection
from bench.load import Figures
from bench.modes import FLOWSTONE, KAFKA, NOT_FLUSHED
from bench.queues.gates import BATCHES, DELIVERY, EACH, KEYS, LARGE, verdicts
from bench.queues.load import Consumers, ShareLoad, compile_load
from bench.rounds import Turns
from bench.servers import Flowstone, Kafka, Server
from bench.topics import create
from bench.workloads import Workload

TITLE = "Share groups of Flowstone and Apache Kafka side by side"
SERVERS: dict[str, type[Server]] = {FLOWSTONE: Flowstone, KAFKA: Kafka}
# One broker cannot have the three replicas that both brokers give `__share_group_state` by default.
ONE_REPLICA = {
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
CONSUMERS = (1, 8, 64)
NAMES = (BATCHES, EACH, LARGE, DELIVERY, KEYS)
LARGE_BATCH_BYTES = 1_000_000
# A round of records that are acknowledged one by one ends after some time: its rate depends on round trips.
ROUND_SECONDS_MAX, EACH_SECONDS = 60, 3
EACH_POLL_RECORDS = 10  # a batch of the log at most, so that a round ends soon
RATE = 1_000  # records per second of `delivery`, which both brokers can deliver
ROUNDS, QUICK_ROUNDS, QUICK_SHARE = 5, 3, 3


@dataclass(frozen=True, slots=True)
class Sizes:
    """The records of one round."""

    records: int = 600_000
    each: int = 60_000
    delivery: int = 3_000

    def smaller(self, share: int) -> Sizes:
        return Sizes(self.records // share, self.each // share, self.delivery // share)


Run = Callable[[Consumers], Figures]


class Groups:
    """The consumers of one workload, which stay from round to round: one group on each broker."""

    def __init__(self, classes: Path) -> None:
        self._classes, self._stack = classes, ExitStack()
        self._consumers: dict[tuple[Server, ShareLoad], Consumers] = {}

    def leave(self) -> None:
        """End all consumers: the next workload has others."""
        self._consumers.clear()
        self._stack.close()

    def of(self, server: Server, load: ShareLoad) -> Consumers:
        """Return the consumers of a broker, which join their group with the first round."""
        found = self._consumers.get((server, load))
        if found is None or not found.is_running:  # it ends with an error, which fails its round
            topic = f"queue{time.time_ns()}"
            with Connection(server.address) as admin:
                create(admin, topic, 1)
            found = self._stack.enter_context(Consumers(server, self._classes, topic, load))
            self._consumers[server, load] = found
        return found


def _run(groups: Groups, load: ShareLoad, run: Run, server: Server) -> Figures:
    return run(groups.of(server, load))


def _run_by_key(groups: Groups, load: ShareLoad, records: int, server: Server) -> Figures:
    """Consume in no order, and then by key; return both rates and how many times slower the second one is."""
    free = groups.of(server, load).consume(records, ROUND_SECONDS_MAX)
    ordered = groups.of(server, replace(load, ordering="key")).consume(records, ROUND_SECONDS_MAX)
    return {
        "records_per_s": ordered["records_per_s"],
        "unordered_records_per_s": free["records_per_s"],
        "cost": free["records_per_s"] / ordered["records_per_s"],
        "cpu_s_per_million": ordered["cpu_s_per_million"],
    }


def catalogue(groups: Groups, consumers: Sequence[int], sizes: Sizes) -> Iterator[Workload]:
    """Yield everything that is measured."""
    rounds: dict[str, tuple[ShareLoad, Run, str]] = {
        BATCHES: (ShareLoad(1), lambda each: each.consume(sizes.records, ROUND_SECONDS_MAX), "records_per_s"),
        EACH: (
            ShareLoad(1, "each", poll_records=EACH_POLL_RECORDS),
            lambda each: each.consume(sizes.each, EACH_SECONDS),
            "records_per_s",
        ),
        LARGE: (
            ShareLoad(1, batch_bytes=LARGE_BATCH_BYTES),
            lambda each: each.consume(sizes.records, ROUND_SECONDS_MAX),
            "records_per_s",
        ),
        DELIVERY: (ShareLoad(1), lambda each: each.delays(RATE, sizes.delivery), "p50_ms"),
    }
    for name, (load, run, headline) in rounds.items():
        for count in consumers:
            work = partial(_run, groups, replace(load, consumers=count), run)
            yield Workload(name, _variant(count), NOT_FLUSHED, headline, work)
    for count in consumers:
        work = partial(_run_by_key, groups, ShareLoad(count), sizes.records)
        yield Workload(KEYS, _variant(count), NOT_FLUSHED, "records_per_s", work)


def _variant(consumers: int) -> str:
    return f"{consumers} consumer{'s' if consumers > 1 else ''}"


def measure(chosen: argparse.Namespace) -> Outcome:
    cases: list[Case] = []
    failures: list[str] = []
    names = [chosen.only] if chosen.only else list(SERVERS)
    sizes = Sizes().smaller(QUICK_SHARE) if chosen.quick else Sizes()
    with ExitStack() as stack:
        classes = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-queues-")))
        compile_load(classes)
        servers = {
            name: stack.enter_context(SERVERS[name]({**NOT_FLUSHED.settings[name], **ONE_REPLICA})) for name in names
        }
        groups = Groups(classes)
        stack.callback(groups.leave)
        for workload in catalogue(groups, chosen.consumers, sizes):
            measured = _servers_of(workload.name, servers)
            if workload.name in chosen.only_workload and measured:
                turns = Turns(workload, measured, failures)
                cases.append(turns.case)
                turns.measure(chosen.rounds)
                groups.leave()
    return Outcome(cases, verdicts(cases) if len(names) == len(SERVERS) else [], failures)


def _servers_of(workload: str, servers: Mapping[str, Server]) -> dict[str, Server]:
    """Return the brokers that a workload measures: only Flowstone has key ordering."""
    return {name: server for name, server in servers.items() if workload != KEYS or name == FLOWSTONE}


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.queues", description="Share groups side by side.")
    parser.add_argument("--rounds", type=int, help=f"counted rounds (default {ROUNDS}, quick {QUICK_ROUNDS})")
    parser.add_argument("--quick", action="store_true", help="smaller rounds, for a quick estimate")
    parser.add_argument("--only", choices=SERVERS, help="measure one broker, without gates")
    parser.add_argument("--only-workload", choices=NAMES, action="append", help="measure this one; repeatable")
    parser.add_argument("--consumers", type=int, action="append", help="measure so many consumers; repeatable")
    parser.add_argument("--name", help="name of the result files (default: the current time, ignored by git)")
    chosen = parser.parse_args(words)
    chosen.rounds = chosen.rounds or (QUICK_ROUNDS if chosen.quick else ROUNDS)
    chosen.only_workload = chosen.only_workload or NAMES
    chosen.consumers = chosen.consumers or CONSUMERS
    if chosen.rounds < 1 or min(chosen.consumers) < 1:
        parser.error("at least one round and one consumer are needed")
    return chosen


def main(words: Sequence[str] | None = None) -> int:
    chosen = arguments(words)
    return carry_out(partial(measure, chosen), TITLE, chosen.name, {"Apache Kafka": KAFKA_VERSION})


if __name__ == "__main__":
    sys.exit(main())
