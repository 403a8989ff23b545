"""The counted rounds of one workload, by broker, with their medians and ratios. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from bench.load import Figures
from bench.modes import FLOWSTONE, KAFKA

WARM_UP_AGREEMENT = 0.10


@dataclass(slots=True)
class Case:
    """The rounds of one workload and variant; `unsettled` names the brokers whose warm-up rounds never agreed."""

    workload: str
    mode: str
    variant: str
    headline: str
    rounds: dict[str, list[Figures]] = field(default_factory=dict)
    unsettled: list[str] = field(default_factory=list)

    @property
    def metrics(self) -> list[str]:
        """Return the names of the metrics in the order of the first round that has any."""
        return next((list(figures) for rounds in self.rounds.values() for figures in rounds), [])

    def median(self, broker: str, metric: str) -> float | None:
        values = [figures[metric] for figures in self.rounds.get(broker, ())]
        return median(values) if values else None

    def ratio(self, metric: str) -> float | None:
        return ratio(self.median(FLOWSTONE, metric), self.median(KAFKA, metric))

    def as_dict(self) -> dict[str, object]:
        return {
            "workload": self.workload,
            "mode": self.mode,
            "variant": self.variant,
            "headline": self.headline,
            "warm-up never agreed": self.unsettled,
            "medians": {each: {metric: self.median(each, metric) for metric in self.metrics} for each in self.rounds},
            "ratios": {metric: self.ratio(metric) for metric in self.metrics},
            "rounds": self.rounds,
        }

    def __str__(self) -> str:
        return f"{self.workload}, {self.mode}: {self.variant}"


def ratio(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours is not None and theirs else None


def agree(before: float, now: float) -> bool:
    """Return whether two consecutive rounds are close enough to consider a broker warm."""
    return abs(now - before) <= WARM_UP_AGREEMENT * max(abs(before), abs(now))


def named(cases: Sequence[Case], workload: str, mode: str, variant: str | None) -> Iterator[Case]:
    """Yield the cases of a workload in a mode, of one variant or of all."""
    for case in cases:
        if (case.workload, case.mode) == (workload, mode) and variant in (None, case.variant):
            yield case
