"""The gates (required) and aims (desired) of a release. Pure: cases in, verdicts out.

A gate compares medians. A gate whose workload was not run has no verdict; one whose workload has no counted round is
missed, never skipped.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bench import modes
from bench.cases import Case, named, ratio
from bench.modes import FLOWSTONE, KAFKA
from bench.workloads import BATCH_BYTES, PIPELINED, START, SYNCHRONOUS, pipelined_variant

COMPARISONS: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le}

NOT_FLUSHED, FLUSHED = modes.NOT_FLUSHED.name, modes.FLUSHED.name
MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Gate:
    """A limit on the ratio of Flowstone's median to Kafka's, or on Flowstone's alone."""

    workload: str
    mode: str
    variant: str | None  # None: each of them
    metric: str
    comparison: str
    limit: float
    relative: bool = True
    binding: bool = True
    kafka_mode: str | None = None  # the mode in which Kafka is measured, if it differs: only for an aim

    def value(self, case: Case, cases: Sequence[Case]) -> float | None:
        ours = case.median(FLOWSTONE, self.metric)
        if not self.relative:
            return ours
        theirs = next(named(cases, self.workload, self.kafka_mode or self.mode, case.variant), None)
        return ratio(ours, theirs.median(KAFKA, self.metric)) if theirs else None


@dataclass(frozen=True, slots=True)
class Verdict:
    gate: Gate
    case: Case
    value: float | None

    @property
    def passed(self) -> bool:
        return self.value is not None and COMPARISONS[self.gate.comparison](self.value, self.gate.limit)

    @property
    def promise(self) -> str:
        unit = "x" if self.gate.relative else ""
        return f"{self.gate.comparison} {self.gate.limit:g}{unit}"

    def __str__(self) -> str:
        value = "unknown" if self.value is None else f"{self.value:.2f}"
        other = f" (Kafka {self.gate.kafka_mode})" if self.gate.kafka_mode else ""
        return f"{self.case}{other}: {self.gate.metric} is {value}, to be {self.promise}"


def verdicts(cases: Sequence[Case]) -> list[Verdict]:
    return list(_judge(cases))


def _judge(cases: Sequence[Case]) -> Iterator[Verdict]:
    for gate in (*GATES, *AIMS):
        for case in named(cases, gate.workload, gate.mode, gate.variant):
            if not gate.kafka_mode or any(named(cases, gate.workload, gate.kafka_mode, case.variant)):
                yield Verdict(gate, case, gate.value(case, cases))


def _throughput(mode: str, limits: Sequence[float], binding: bool = True) -> Iterator[Gate]:
    for batch_bytes, limit in zip(BATCH_BYTES, limits, strict=False):
        variant = pipelined_variant(batch_bytes)
        yield Gate(PIPELINED, mode, variant, "produce_mb_per_s", ">=", limit, binding=binding)


def _at_each_size(metric: str, limit: float, binding: bool = True) -> Iterator[Gate]:
    for batch_bytes in BATCH_BYTES:
        yield Gate(PIPELINED, NOT_FLUSHED, pipelined_variant(batch_bytes), metric, "<=", limit, binding=binding)


GATES = (
    *_throughput(NOT_FLUSHED, (1.5, 1.3, 1.3)),
    *_at_each_size("produce_cpu_s_per_gb", 0.6),
    *_at_each_size("fetch_cpu_s_per_gb", 1.0),
    Gate(SYNCHRONOUS, NOT_FLUSHED, None, "p99_ms", "<=", 0.8),
    Gate(START, NOT_FLUSHED, None, "first_acknowledged_s", "<=", 0.15),
    Gate(START, NOT_FLUSHED, None, "idle_rss_mb", "<=", 60, relative=False),
    Gate(MEMORY, NOT_FLUSHED, None, "peak_rss_mb", "<=", 200, relative=False),
    Gate(MEMORY, FLUSHED, None, "peak_rss_mb", "<=", 200, relative=False),
    *_throughput(FLUSHED, (3, 2, 1)),
    Gate(SYNCHRONOUS, FLUSHED, None, "p50_ms", "<=", 0.8),
    Gate(SYNCHRONOUS, FLUSHED, None, "p99_ms", "<=", 0.8),
)
AIMS = (
    *_throughput(NOT_FLUSHED, (2.5, 2), binding=False),
    *_at_each_size("fetch_cpu_s_per_gb", 0.8, binding=False),
    Gate(PIPELINED, FLUSHED, pipelined_variant(BATCH_BYTES[0]), "produce_mb_per_s", ">=", 1, binding=False,
         kafka_mode=NOT_FLUSHED),
)  # fmt: skip
