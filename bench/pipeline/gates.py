"""The gates of pipelines, and their page. Pure: cases in, verdicts out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.cases import Case, ratio
from bench.gates import Gate, Verdict
from bench.modes import FLOWSTONE
from bench.pipeline.jobs import BARE, DESCRIPTIONS, ROWS_PER_S, STOCK, STOCK_PARQUET
from bench.spark import report

WORKLOAD, MODE = "pipeline", "availableNow"


@dataclass(frozen=True, slots=True)
class RatioGate(Gate):
    """A limit on the ratio of the pipeline's median to that of another job."""

    other: str = ""

    def value(self, case: Case, cases: Sequence[Case]) -> float | None:
        return ratio(case.median(FLOWSTONE, self.metric), case.median(self.other, self.metric))


GATES = (
    RatioGate(WORKLOAD, MODE, None, ROWS_PER_S, ">=", 1.2, other=STOCK),
    RatioGate(WORKLOAD, MODE, None, ROWS_PER_S, ">=", 0.9, other=BARE),
    RatioGate(WORKLOAD, MODE, None, ROWS_PER_S, ">=", 1.2, binding=False, other=STOCK_PARQUET),
)


def verdicts(cases: Sequence[Case]) -> list[Verdict]:
    return [Verdict(gate, case, gate.value(case, cases)) for gate in GATES for case in cases]


def page(title: str, facts: Sequence[str], cases: Sequence[Case], judged: Sequence[Verdict]) -> str:
    compared = [f"gate {number}: compared with {gate.other}" for number, gate in enumerate(GATES, 1)]
    return report.page(title, [*facts, *compared], cases, judged, DESCRIPTIONS)
