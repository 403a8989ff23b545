"""`python -m bench.pipeline`: a declared pipeline compared with hand-written jobs that do the same, with gates.

A million events go through three steps into a Delta table and a topic. Every round checks both. Writes JSON, Markdown
and SVG to bench/results; docs/benchmarks.md describes the jobs and the method.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyspark
from scripts.fetch_spark_kafka import CONNECTOR_VERSION, connector_jars

from bench.cases import Case
from bench.command import Outcome, carry_out
from bench.modes import FLOWSTONE, NOT_FLUSHED
from bench.pipeline import events, gates, jobs
from bench.pipeline.jobs import JOBS, ROWS_PER_S
from bench.servers import Flowstone
from flowstone.pipeline.engine.session import open_session

TITLE = "A declared pipeline and hand-written jobs"
EVENTS, QUICK_EVENTS = 1_000_000, 200_000
ROUNDS, QUICK_ROUNDS = 5, 2
WARM_UP_ROUNDS = 2
SOURCE = "events"


def run(count: int, rounds: int) -> Case:
    """Run all jobs, alternating; the first rounds do not count. Raises RoundFailed if rows are missing."""
    case = Case(gates.WORKLOAD, gates.MODE, f"{count:,} events", ROWS_PER_S, {name: [] for name in JOBS})
    with Flowstone(NOT_FLUSHED.settings[FLOWSTONE]) as server, tempfile.TemporaryDirectory() as directory:
        expected = events.fill(server, SOURCE, count)
        model = jobs.declared(jobs.Place(None, server, SOURCE, Path(directory), "none"))  # type: ignore[arg-type]
        spark = open_session(replace(model, spark={"spark.jars": connector_jars()}), "local[2]")
        try:
            for number in range(WARM_UP_ROUNDS + rounds):
                for name in [*JOBS][:: 1 if number % 2 else -1]:
                    figures = jobs.measure(name, spark, server, SOURCE, count, expected)
                    if number >= WARM_UP_ROUNDS:
                        case.rounds[name].append(figures)
                    counted = "counts " if number >= WARM_UP_ROUNDS else "warm-up"
                    print(f"  {counted} {name:<20}{figures[ROWS_PER_S]:14,.1f} rows/s", file=sys.stderr)
        finally:
            spark.stop()
    return case


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_EVENTS:,} events, for a quick estimate")
    parser.add_argument("--rounds", type=int, help=f"counted rounds (default {ROUNDS}, quick {QUICK_ROUNDS})")
    parser.add_argument("--name", help="name of the result files (default: the current time, ignored by git)")
    chosen = parser.parse_args(words)
    if chosen.rounds is not None and chosen.rounds < 1:
        parser.error("at least one round is needed")
    return chosen


def main(words: Sequence[str] | None = None) -> int:
    chosen = arguments(words)
    count, rounds = (QUICK_EVENTS, QUICK_ROUNDS) if chosen.quick else (EVENTS, ROUNDS)

    def measured() -> Outcome:
        cases = [run(count, chosen.rounds or rounds)]
        return Outcome(cases, gates.verdicts(cases))

    facts = {
        "versions": f"PySpark {pyspark.__version__}, its Kafka connector {CONNECTOR_VERSION}",
        "events": f"{count:,}, {jobs.ROWS_PER_BATCH:,} per micro-batch at most",
    }
    return carry_out(measured, TITLE, chosen.name, facts, gates.page)


if __name__ == "__main__":
    sys.exit(main())
