"""Common parts of the side-by-side benchmarks: measure, store the results, report missed gates.

A run writes JSON (every round), Markdown (verdicts, medians, ratios) and SVG (ratios) to bench/results.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.fetch_kafka import FetchError

from bench import plot, report
from bench.cases import Case
from bench.gates import Verdict
from bench.servers import ServerError
from bench.topics import RoundFailed

RESULTS = Path(__file__).with_name("results")

Page = Callable[[str, Sequence[str], Sequence[Case], Sequence[Verdict]], str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run; `failures` are the rounds that do not count."""

    cases: Sequence[Case]
    verdicts: Sequence[Verdict]
    failures: Sequence[str] = field(default=())

    @property
    def problems(self) -> list[str]:
        missed = [verdict for verdict in self.verdicts if verdict.gate.binding and not verdict.passed]
        return [*self.failures, *(f"gate missed: {verdict}" for verdict in missed)]


def carry_out(
    measure: Callable[[], Outcome],
    title: str,
    name: str | None,
    facts: Mapping[str, object],
    page: Page = report.page,
) -> int:
    """Run the benchmark; return the exit status: 1 if a gate was missed or a round failed.

    Without a `name`, the files are named after the current time and ignored by git.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the brokers are stopped
    started, load_before = time.time(), os.getloadavg()[0]
    try:
        outcome = measure()
    except (ServerError, FetchError, RoundFailed) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(started))
    about = {
        "started": stamp,
        "seconds": round(time.time() - started),
        "load average before": round(load_before, 2),
        "load average at the end (of the benchmark itself too)": round(os.getloadavg()[0], 2),
        "machine": f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}",
        **facts,
        "rounds that did not count": len(outcome.failures),
    }
    text = page(title, [f"{key}: {value}" for key, value in about.items()], outcome.cases, outcome.verdicts)
    _write(name or stamp, title, text, about, outcome)
    print("\n".join(outcome.problems), end="\n" if outcome.problems else "", file=sys.stderr)
    return 1 if outcome.problems else 0


def _write(name: str, title: str, text: str, about: Mapping[str, object], outcome: Outcome) -> None:
    result = {**about, "problems": outcome.problems, "cases": [case.as_dict() for case in outcome.cases]}
    RESULTS.mkdir(exist_ok=True)
    files = {"json": json.dumps(result, indent=1) + "\n", "md": text, "svg": plot.svg(title, outcome.cases)}
    for ending, content in files.items():
        (RESULTS / f"{name}.{ending}").write_text(content)
    print(text)
    print(f"All figures: {RESULTS / name}.json, .md, .svg")
