"""The gates of the queue benchmark. Pure: cases in, verdicts out."""

from __future__ import annotations

from collections.abc import Sequence

from bench.cases import Case, named
from bench.gates import Gate, Verdict
from bench.modes import NOT_FLUSHED

BATCHES, EACH, LARGE = "acknowledged in batches", "acknowledged one by one", "1 MB batches"
DELIVERY, KEYS = "delivery", "key ordering"
RATES = (BATCHES, EACH, LARGE)

MODE = NOT_FLUSHED.name
GATES = (
    *(Gate(workload, MODE, None, "records_per_s", ">=", 1.2) for workload in RATES),
    *(Gate(workload, MODE, None, "cpu_s_per_million", "<=", 0.8) for workload in RATES),
    Gate(DELIVERY, MODE, None, "p99_ms", "<=", 1.0),
    Gate(KEYS, MODE, None, "cost", "<=", 2.0, relative=False),
)


def verdicts(cases: Sequence[Case]) -> list[Verdict]:
    """Return the verdict of each gate on every case that it is about."""
    return [
        Verdict(gate, case, gate.value(case, cases))
        for gate in GATES
        for case in named(cases, gate.workload, gate.mode, gate.variant)
    ]
