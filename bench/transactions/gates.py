"""The gates of the transactions benchmark. Pure: cases in, verdicts out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.cases import Case, named
from bench.gates import Gate, Verdict
from bench.modes import FLUSHED, MODES, NOT_FLUSHED

PRODUCE, CROWD, PACED, READ = "transactions", "many producers", "many producers, paced", "read_committed"


def _gates() -> Iterator[Gate]:
    for workload in (PRODUCE, CROWD):
        for mode, limit in ((NOT_FLUSHED, 1.0), (FLUSHED, 1.5)):
            yield Gate(workload, mode.name, None, "transactions_per_s", ">=", limit)
    # A crowd without pauses has as many transactions under way with either broker, at different rates: its latencies
    # are not comparable.
    for workload in (PRODUCE, PACED):
        for mode in MODES:
            yield Gate(workload, mode.name, None, "commit_p50_ms", "<=", 1.0)
    yield Gate(READ, NOT_FLUSHED.name, None, "committed_to_uncommitted", "<=", 1.1, relative=False)


GATES = tuple(_gates())


def verdicts(cases: Sequence[Case]) -> list[Verdict]:
    """Return the verdict of each gate on every case that it is about."""
    return [
        Verdict(gate, case, gate.value(case, cases))
        for gate in GATES
        for case in named(cases, gate.workload, gate.mode, gate.variant)
    ]
