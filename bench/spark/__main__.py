"""`python -m bench.spark`: our source and sink compared with Spark's Kafka connector, with gates.

Writes JSON (every round), Markdown (verdicts, medians, ratios) and SVG (ratios) to bench/results; docs/benchmarks.md
describes the workloads and the method.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import pyspark
from scripts.fetch_kafka import KAFKA_VERSION
from scripts.fetch_spark_kafka import CONNECTOR_VERSION

from bench.cases import Case
from bench.command import Outcome, carry_out
from bench.micro import columns
from bench.modes import FLOWSTONE, KAFKA, NOT_FLUSHED
from bench.servers import Flowstone, Kafka
from bench.spark import gates, records, report, small_batches, throughput
from bench.spark.rounds import measure
from bench.spark.session import spark_session
from bench.spark.systems import FLUSHED, OUR_FORMAT, STOCK_FORMAT, STOCK_ON_FLOWSTONE, WITHOUT_WAITS, System

TITLE = "Topics in Spark: Flowstone's format and the Kafka connector"
PARTS = ("read", "write", "small", "decode")
# The best of some, apart from each other: one look at the kernel is a tenth of a second, and whatever else the machine
# does just then has been seen to halve its rate.
DECODE_LOOKS = 5
DECODE_APART_S = 1.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """The amounts of data. Rows are by the size of a value in bytes."""

    rows_read: dict[int, int]
    rows_written: dict[int, int]
    rounds: int
    small_batches: int
    idle_s: float


# A read takes seconds, for what does not grow with the rows (planning, the files of a checkpoint) to be little of it;
# `small read` and `micro-batch` tell that part.
FULL = Sizes(
    {100: 5_000_000, 1_000: 1_000_000}, {100: 2_000_000, 1_000: 400_000}, rounds=5, small_batches=20, idle_s=10.0
)
QUICK = Sizes({100: 500_000, 1_000: 100_000}, {100: 500_000, 1_000: 100_000}, rounds=2, small_batches=5, idle_s=3.0)


class Bench:
    """The systems, which run for the whole benchmark, and the measurements on them."""

    def __init__(self, stack: ExitStack, sizes: Sizes) -> None:
        self._sizes = sizes
        self._flowstone = stack.enter_context(Flowstone(NOT_FLUSHED.settings[FLOWSTONE]))
        self._flushed = stack.enter_context(Flowstone())
        self._kafka = stack.enter_context(Kafka(NOT_FLUSHED.settings[KAFKA]))
        spark = stack.enter_context(spark_session())
        self._ours = System(FLOWSTONE, spark, OUR_FORMAT, self._flowstone)
        stock = System(STOCK_ON_FLOWSTONE, spark, STOCK_FORMAT, self._flowstone, WITHOUT_WAITS)
        theirs = System(KAFKA, spark, STOCK_FORMAT, self._kafka, WITHOUT_WAITS)
        self._readers = [self._ours, stock, theirs]
        self._ours_flushed = System(FLUSHED, spark, OUR_FORMAT, self._flushed)

    def run(self, parts: Sequence[str]) -> list[Case]:
        measured = {"read": self._read, "write": self._write, "small": self._small, "decode": self._decode}
        return [case for name in PARTS if name in parts for case in measured[name]()]

    def _warm_up(self) -> None:
        self._fill("warm-up", 100, throughput.WARM_UP_ROWS, "none")
        for system in self._readers:
            throughput.warm_up(system, "warm-up", throughput.WARM_UP_ROWS)

    def _read(self) -> list[Case]:
        self._warm_up()
        cases: list[Case] = []
        for size_bytes, count in self._sizes.rows_read.items():
            for compression in throughput.COMPRESSIONS:
                topic = f"records-{size_bytes}-{compression}"
                self._fill(topic, size_bytes, count, compression)
                both = (throughput.batch_read, throughput.available_now_read)
                work = [each(topic, size_bytes, compression, count) for each in both]
                cases += [measure(each, self._readers, self._sizes.rounds) for each in work]
        return cases

    def _fill(self, topic: str, size_bytes: int, count: int, compression: str) -> None:
        """Fill a topic on both brokers, and check that every reader finds all records."""
        for server in (self._flowstone, self._kafka):
            records.fill(server, topic, size_bytes, count, compression)
        for system in self._readers:
            throughput.check_rows(system, topic, count)

    def _write(self) -> list[Case]:
        systems = [*self._readers, self._ours_flushed]
        return [
            measure(throughput.batch_write(size_bytes, count), systems, self._sizes.rounds)
            for size_bytes, count in self._sizes.rows_written.items()
        ]

    def _small(self) -> list[Case]:
        self._fill("few-records", 100, throughput.SMALL_READ_ROWS, "none")
        reads = measure(throughput.small_read("few-records"), self._readers, self._sizes.rounds)
        batches = small_batches.micro_batches(self._readers, self._sizes.small_batches)
        return [reads, batches, small_batches.idle(self._ours, self._sizes.idle_s)]

    def _decode(self) -> list[Case]:
        rounds = {FLOWSTONE: [{gates.DECODE_RATE: max(map(_decode_rate, range(DECODE_LOOKS)))}]}
        return [Case(gates.DECODE, gates.ONE_CORE, gates.DECODE_VARIANT, gates.DECODE_RATE, rounds)]


def _decode_rate(look: int) -> float:
    if look:
        time.sleep(DECODE_APART_S)
    return columns.rate(columns.kernel(100)) / 1e6


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small amounts of everything, for a quick estimate")
    parser.add_argument("--only", choices=PARTS, action="append", help="measure this part; repeatable")
    parser.add_argument("--rounds", type=int, help=f"counted rounds (default {FULL.rounds}, quick {QUICK.rounds})")
    parser.add_argument("--name", help="name of the result files (default: the current time, ignored by git)")
    chosen = parser.parse_args(words)
    if chosen.rounds is not None and chosen.rounds < 1:
        parser.error("at least one round is needed")
    return chosen


def main(words: Sequence[str] | None = None) -> int:
    chosen = arguments(words)
    sizes = QUICK if chosen.quick else FULL
    if chosen.rounds is not None:
        sizes = replace(sizes, rounds=chosen.rounds)

    def measured() -> Outcome:
        with ExitStack() as stack:
            cases = Bench(stack, sizes).run(chosen.only or PARTS)
        return Outcome(cases, gates.verdicts(cases))

    facts = {
        "versions": f"Apache Kafka {KAFKA_VERSION}, PySpark {pyspark.__version__}, its connector {CONNECTOR_VERSION}",
        "rows read": _told(sizes.rows_read),
        "rows written": _told(sizes.rows_written),
    }
    return carry_out(measured, TITLE, chosen.name, facts, report.page)


def _told(rows: dict[int, int]) -> str:
    return ", ".join(f"{count:,} of {size} B" for size, count in rows.items())


if __name__ == "__main__":
    sys.exit(main())
