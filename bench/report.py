"""What a run came to: medians over rounds, Flowstone's ratio to Kafka, and the gates a release has to pass.

Pure: figures in, text and verdicts out. A gate compares medians; it is missed, never skipped, when a side has no round
that counts.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from bench.load import Figures

FLOWSTONE, KAFKA = "flowstone", "kafka"
NOT_FLUSHED, FLUSHED = "not flushed", "flushed"

METRICS = tuple(Figures.__dataclass_fields__)

COMPARISONS: dict[str, Callable[[float, float], bool]] = {">": operator.gt, ">=": operator.ge, "<=": operator.le}


@dataclass(frozen=True, slots=True)
class Gate:
    """Flowstone's median over Kafka's must compare so with the limit, at every batch size."""

    mode: str
    metric: str
    comparison: str
    limit: float

    def passes(self, ratio: float | None) -> bool:
        return ratio is not None and COMPARISONS[self.comparison](ratio, self.limit)

    def __str__(self) -> str:
        return f"{self.comparison} {self.limit}"


GATES = (
    Gate(NOT_FLUSHED, "produce_mb_per_s", ">", 1.0),
    Gate(NOT_FLUSHED, "produce_cpu_s_per_gb", "<=", 0.7),
    Gate(NOT_FLUSHED, "fetch_cpu_s_per_gb", "<=", 1.0),
    Gate(FLUSHED, "produce_mb_per_s", ">=", 1.0),
)


@dataclass(slots=True)
class Case:
    """One mode and batch size: the rounds that count, by broker."""

    mode: str
    batch_bytes: int
    rounds: dict[str, list[Figures]] = field(default_factory=dict)

    def median(self, broker: str, metric: str) -> float | None:
        values = [getattr(figures, metric) for figures in self.rounds.get(broker, ())]
        return median(values) if values else None

    def ratio(self, metric: str) -> float | None:
        ours, theirs = self.median(FLOWSTONE, metric), self.median(KAFKA, metric)
        return ours / theirs if ours is not None and theirs else None

    def gate(self, metric: str) -> Gate | None:
        return next((gate for gate in GATES if (gate.mode, gate.metric) == (self.mode, metric)), None)

    def __str__(self) -> str:
        return f"{self.mode}, batches of {self.batch_bytes:,} bytes"


def missed_gates(cases: Sequence[Case]) -> list[str]:
    return list(_misses(cases))


def _misses(cases: Sequence[Case]) -> Iterator[str]:
    for case in cases:
        for metric in METRICS:
            gate, ratio = case.gate(metric), case.ratio(metric)
            if gate is not None and not gate.passes(ratio):
                yield f"{case}: {metric} is {_number(ratio)}x Kafka's, to be {gate}"


def table(cases: Sequence[Case]) -> str:
    lines = []
    for case in cases:
        counts = " and ".join(f"{len(rounds)} of {broker}" for broker, rounds in case.rounds.items())
        lines.append(f"{case} (rounds: {counts})")
        lines.append(f"  {'median':<24}{FLOWSTONE:>12}{KAFKA:>12}{'ratio':>9}  gate")
        lines += [_row(case, metric) for metric in METRICS]
        lines.append("")
    return "\n".join(lines)


def _row(case: Case, metric: str) -> str:
    ratio, gate = case.ratio(metric), case.gate(metric)
    compared = len(case.rounds) > 1
    verdict = f"{gate} {'passed' if gate.passes(ratio) else 'MISSED'}" if gate and compared else ""
    ours, theirs = (_number(case.median(broker, metric)) for broker in (FLOWSTONE, KAFKA))
    return f"  {metric:<24}{ours:>12}{theirs:>12}{_number(ratio):>9}  {verdict}".rstrip()


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
