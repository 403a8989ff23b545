"""`python -m bench.transactions`: transactions of Flowstone and Apache Kafka side by side, with gates.

Writes JSON (every round), Markdown (verdicts, medians, ratios) and SVG (ratios) to bench/results; docs/benchmarks.md
describes the workloads and the method.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from scripts.fetch_kafka import KAFKA_VERSION

from bench.cases import Case
from bench.command import Outcome, carry_out
from bench.modes import FLOWSTONE, KAFKA, MODES, NOT_FLUSHED, Mode
from bench.rounds import Turns
from bench.servers import Flowstone, Kafka, Server
from bench.transactions import reads
from bench.transactions.gates import CROWD, PACED, PRODUCE, READ, verdicts
from bench.transactions.load import TransactionLoad, run_round
from bench.workloads import Workload

TITLE = "Transactions of Flowstone and Apache Kafka side by side"
SERVERS: dict[str, type[Server]] = {FLOWSTONE: Flowstone, KAFKA: Kafka}
# One broker cannot have the three replicas that both brokers give `__transaction_state` by default.
SETTINGS = {"transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1"}

RECORDS, PARTITIONS = (1, 10, 100), (1, 4)
CROWD_PRODUCERS, CROWD_RECORDS = 100, 10
PACED_INTERVAL_S = 2.0  # a rate that both brokers can keep up with
NAMES = (PRODUCE, CROWD, PACED, READ)
FETCH_BYTES = (1_000_000, 16_000)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How long a round of producers is, how much is read, and how many rounds count."""

    seconds: float
    transactions_read: int
    fetches: int
    rounds: int


FULL = Sizes(seconds=2.0, transactions_read=2_000, fetches=200, rounds=5)
QUICK = Sizes(seconds=1.0, transactions_read=800, fetches=100, rounds=3)


def catalogue(mode: Mode, sizes: Sizes) -> Iterator[Workload]:
    """Yield everything that is measured in a mode."""
    for partitions in PARTITIONS:
        for records in RECORDS:
            load = TransactionLoad(records, partitions, sizes.seconds)
            variant = f"{_count(records, 'record')}, {_count(partitions, 'partition')}"
            yield Workload(PRODUCE, variant, mode, "transactions_per_s", partial(run_round, load=load))
    crowd = TransactionLoad(CROWD_RECORDS, max(PARTITIONS), sizes.seconds, CROWD_PRODUCERS)
    variant = f"{CROWD_PRODUCERS} producers, {CROWD_RECORDS} records, {max(PARTITIONS)} partitions"
    yield Workload(CROWD, variant, mode, "transactions_per_s", partial(run_round, load=crowd))
    paced = replace(crowd, seconds=2 * PACED_INTERVAL_S, interval_s=PACED_INTERVAL_S)
    variant = f"{variant}, each every {PACED_INTERVAL_S:g} s"
    yield Workload(PACED, variant, mode, "commit_p50_ms", partial(run_round, load=paced))
    if mode is NOT_FLUSHED:
        for fetch_bytes in FETCH_BYTES:
            run = partial(
                reads.run_round, transactions=sizes.transactions_read, fetch_bytes=fetch_bytes, fetches=sizes.fetches
            )
            yield Workload(READ, f"fetches of {fetch_bytes:,} B", mode, "committed_to_uncommitted", run)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


class Run:
    """The options of a run."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self._brokers = [chosen.only] if chosen.only else list(SERVERS)
        self._modes = [mode for mode in MODES if chosen.mode in (None, mode.name)]
        self._names = chosen.only_workload or NAMES
        self._variant: str = chosen.variant
        self._sizes = QUICK if chosen.quick else FULL
        self._rounds: int = chosen.rounds or self._sizes.rounds

    def measure(self) -> Outcome:
        cases: list[Case] = []
        failures: list[str] = []
        for mode in self._modes:
            wanted = [each for each in catalogue(mode, self._sizes) if self._is_wanted(each)]
            if not wanted:
                continue
            with ExitStack() as stack:
                servers = {
                    name: stack.enter_context(SERVERS[name]({**mode.settings[name], **SETTINGS}))
                    for name in self._brokers
                }
                for workload in wanted:
                    turns = Turns(workload, servers, failures)
                    cases.append(turns.case)
                    turns.measure(self._rounds)
        # Gates need both brokers: a run of one has none.
        return Outcome(cases, verdicts(cases) if len(self._brokers) == len(SERVERS) else [], failures)

    def _is_wanted(self, workload: Workload) -> bool:
        return workload.name in self._names and self._variant in workload.variant


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.transactions", description="Transactions side by side.")
    parser.add_argument("--rounds", type=int, help=f"counted rounds (default {FULL.rounds}, quick {QUICK.rounds})")
    parser.add_argument("--quick", action="store_true", help="smaller rounds, for a quick estimate")
    parser.add_argument("--only", choices=SERVERS, help="measure one broker, without gates")
    parser.add_argument("--mode", choices=[mode.name for mode in MODES], help="measure one mode (default both)")
    parser.add_argument("--only-workload", choices=NAMES, action="append", help="measure this one; repeatable")
    parser.add_argument("--variant", default="", help="measure the variants that contain this text")
    parser.add_argument("--name", help="name of the result files (default: the current time, ignored by git)")
    chosen = parser.parse_args(words)
    if chosen.rounds is not None and chosen.rounds < 1:
        parser.error("at least one round is needed")
    return chosen


def main(words: Sequence[str] | None = None) -> int:
    chosen = arguments(words)
    return carry_out(Run(chosen).measure, TITLE, chosen.name, {"Apache Kafka": KAFKA_VERSION})


if __name__ == "__main__":
    sys.exit(main())
