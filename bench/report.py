"""The results of a run as a Markdown page: verdicts first, then every median and ratio. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.cases import Case
from bench.gates import Verdict
from bench.modes import FLOWSTONE, KAFKA


def page(title: str, facts: Sequence[str], cases: Sequence[Case], verdicts: Sequence[Verdict]) -> str:
    lines = [f"# {title}", "", *(f"- {fact}" for fact in facts), ""]
    lines += _verdict_table("Gates", [verdict for verdict in verdicts if verdict.gate.binding])
    lines += _verdict_table("Aims", [verdict for verdict in verdicts if not verdict.gate.binding])
    lines += ["## Medians", *_median_tables(cases)]
    return "\n".join(lines) + "\n"


def _verdict_table(title: str, verdicts: Sequence[Verdict]) -> Iterator[str]:
    if not verdicts:
        return
    yield from (f"## {title}", "| | figure | value | to be | |", "|---|---|---:|---:|---|")
    for verdict in verdicts:
        value = "-" if verdict.value is None else f"{verdict.value:.2f}{'x' if verdict.gate.relative else ''}"
        case = f"{verdict.case}" + (f" / Kafka {verdict.gate.kafka_mode}" if verdict.gate.kafka_mode else "")
        outcome = "passed" if verdict.passed else "MISSED"
        yield f"| {case} | {verdict.gate.metric} | {value} | {verdict.promise} | {outcome} |"
    yield ""


def _median_tables(cases: Sequence[Case]) -> Iterator[str]:
    for case in cases:
        counts = ", ".join(f"{len(rounds)} of {broker}" for broker, rounds in case.rounds.items())
        yield from ("", f"**{case}** (rounds: {counts})")
        if case.unsettled:
            yield f"Warm-up rounds of {' and '.join(case.unsettled)} never agreed within 10 %."
        yield from ("", f"| median | {FLOWSTONE} | {KAFKA} | ratio |", "|---|---:|---:|---:|")
        for metric in case.metrics:
            ours, theirs = (number(case.median(broker, metric)) for broker in (FLOWSTONE, KAFKA))
            yield f"| {metric} | {ours} | {theirs} | {number(case.ratio(metric))} |"


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
