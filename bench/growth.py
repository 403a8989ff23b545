"""`python -m bench.growth`: how Flowstone's costs grow with its size.

Flowstone alone: broker CPU per request by number of partitions and by log size, recovery after a kill by log size, and
the costs of many partitions, connections and topics. There are no gates, but costs that should be constant are reported
if they grow. The brokers of a comparison all run and are measured alternately.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

from bench import crowds, growth_load
from bench.command import RESULTS
from bench.growth_load import Log
from bench.load import Figures
from bench.modes import FLOWSTONE, FLUSHED, NOT_FLUSHED
from bench.report import number
from bench.servers import Flowstone, ServerError
from bench.topics import BROKER_TROUBLE, RoundFailed

ROUNDS = 18  # short rounds of a few thousand requests; each broker is first equally often
FLAT_WITHIN = 0.20
PARTITIONS = (1, 100, 1_000)
# Passes per round over all partitions: before the first one, other brokers have displaced this one's cached memory.
PASSES = 5
LOG_BYTES = (1_000_000, 5_000_000_000)
RECOVERED_BYTES = (1_000_000_000, 5_000_000_000)
# Without busy-polling, because the cost of requests is measured.
REQUEST_COST_SETTINGS = {**NOT_FLUSHED.settings[FLOWSTONE], "idle.poll.us": "0"}


@dataclass(frozen=True, slots=True)
class Growth:
    """One comparison with a row of medians for each size. `flat` names the figures that should not grow."""

    title: str
    rows: dict[str, Figures]
    flat: Sequence[str] = ()

    def grown(self) -> list[str]:
        """Return the flat figures that differ between rows by more than the tolerance, each with the difference."""
        found = []
        for metric in self.flat:
            values = [row[metric] for row in self.rows.values()]
            if max(values) > min(values) * (1 + FLAT_WITHIN):
                found.append(f"{metric} is not flat: {max(values) / min(values):.2f} times from least to most")
        return found

    def table(self) -> str:
        metrics = list(dict.fromkeys(metric for row in self.rows.values() for metric in row))
        lines = [f"## {self.title}", "| | " + " | ".join(metrics) + " |", "|---|" + "---:|" * len(metrics)]
        for name, row in self.rows.items():
            lines.append(f"| {name} | " + " | ".join(number(row.get(metric)) for metric in metrics) + " |")
        verdicts = self.grown() or ([f"Flat within {FLAT_WITHIN:.0%}: {', '.join(self.flat)}."] if self.flat else [])
        return "\n".join([*lines, "", *verdicts, ""])


def partitions() -> Growth:
    """Measure 1, 100 and 1,000 partitions with equal total data; the single one has a larger log to search."""
    return _request_costs(
        "CPU per request, by the partitions of the topic (not flushed)",
        {f"{count:,}": Log(partitions=count, produces=PASSES * max(PARTITIONS)) for count in PARTITIONS},
    )


def log_size() -> Growth:
    return _request_costs(
        "CPU per request, by the size of the log (not flushed, one partition, fetches from anywhere in it)",
        {f"{size / 1e6:,.0f} MB at first": Log(partitions=1, size_bytes=size) for size in LOG_BYTES},
    )


def _request_costs(title: str, logs: dict[str, Log]) -> Growth:
    rounds: dict[str, list[Figures]] = {name: [] for name in logs}
    with ExitStack() as stack:
        brokers = {name: stack.enter_context(Flowstone(REQUEST_COST_SETTINGS)) for name in logs}
        for name, log in logs.items():
            log.fill(brokers[name])
        names = list(logs)
        for turn in range(1 + ROUNDS):
            for name in names:
                figures = logs[name].request_costs(brokers[name])
                if turn:  # the first warms up
                    rounds[name].append(figures)
            names.append(names.pop(0))  # no broker always follows the largest one
    return Growth(title, {name: _medians(each) for name, each in rounds.items()}, list(rounds[name][0]))


def _medians(rounds: Sequence[Figures]) -> Figures:
    return {metric: median(figures[metric] for figures in rounds) for metric in rounds[0]}


def recovery() -> Growth:
    rows = {}
    for mode in (FLUSHED, NOT_FLUSHED):
        for size in RECOVERED_BYTES:
            rows[f"{size / 1e9:.0f} GB, {mode.name}"] = growth_load.recovery(mode.settings[FLOWSTONE], size)
    return Growth("Start after kill -9, until the first acknowledged record", rows)


COMPARISONS: dict[str, Callable[[], Growth]] = {
    "partitions": partitions,
    "log-size": log_size,
    "recovery": recovery,
    "one-active": lambda: Growth(
        "One consumer over 1,000 partitions, one of them active", crowds.one_active_of_many()
    ),
    "connections": lambda: Growth("Idle connections", crowds.idle_connections()),
    "topics": lambda: Growth("10,000 topics, at most 1,024 descriptors", crowds.many_topics()),
}  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description="What Flowstone's costs grow with.")
    parser.add_argument("--only", choices=COMPARISONS, action="append", help="measure this one; repeatable")
    parser.add_argument("--name", help="name of the result files (default: the current time, ignored by git)")
    chosen = parser.parse_args(words)
    started, load_average = time.time(), os.getloadavg()[0]
    found: dict[str, Growth] = {}
    try:
        for name in chosen.only or COMPARISONS:
            print(f"bench: {name}", file=sys.stderr, flush=True)
            found[name] = COMPARISONS[name]()
    except (ServerError, RoundFailed, *BROKER_TROUBLE) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    facts = [f"load average before: {load_average:.2f}", f"seconds: {time.time() - started:.0f}"]
    heading = ["# What Flowstone's costs grow with", "", *(f"- {fact}" for fact in facts), ""]
    page = "\n".join([*heading, *(growth.table() for growth in found.values())])
    result = {"facts": facts, **{name: {"rows": each.rows, "grown": each.grown()} for name, each in found.items()}}
    stem = chosen.name or time.strftime("%Y%m%d-%H%M%S-growth", time.localtime(started))
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{stem}.json").write_text(json.dumps(result, indent=1) + "\n")
    (RESULTS / f"{stem}.md").write_text(page)
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
