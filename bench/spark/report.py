"""The results of a run as a Markdown page: `bench.report`'s verdicts, then the medians of all systems. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from bench import report
from bench.cases import Case, ratio
from bench.gates import Verdict
from bench.modes import FLOWSTONE
from bench.report import number
from bench.spark.systems import DESCRIPTIONS


def page(
    title: str,
    facts: Sequence[str],
    cases: Sequence[Case],
    verdicts: Sequence[Verdict],
    descriptions: Mapping[str, str] = DESCRIPTIONS,
) -> str:
    meaning = [f"{name}: {what}" for name, what in descriptions.items()]
    return report.page(title, [*facts, *meaning], [], verdicts) + "\n".join([*_medians(cases), ""])


def _medians(cases: Sequence[Case]) -> Iterator[str]:
    """Yield the table of medians, each with its ratio to ours."""
    for case in cases:
        others = [name for name in case.rounds if name != FLOWSTONE]
        head = "".join(f" {name} | ours / it |" for name in others)
        yield from ("", f"**{case}** (rounds: {len(case.rounds[FLOWSTONE])})", "")
        yield from (f"| median | {FLOWSTONE} |{head}", f"|---|---:|{'---:|---:|' * len(others)}")
        for metric in case.metrics:
            ours = case.median(FLOWSTONE, metric)
            row = f"| {metric} | {number(ours)} |"
            for name in others:
                theirs = case.median(name, metric)
                row += f" {number(theirs)} | {number(ratio(ours, theirs))} |"
            yield row
