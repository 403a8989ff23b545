"""The gates and aims of the Spark source and sink. Pure: cases in, verdicts out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.cases import Case, named
from bench.gates import Gate, Verdict
from bench.spark.small_batches import BATCH_MS, CPU_PERCENT, IDLE, MICRO_BATCH, NOOP
from bench.spark.throughput import (
    AVAILABLE_NOW,
    BATCH,
    COMPRESSIONS,
    READ,
    ROWS_PER_S,
    SIZES_BYTES,
    WRITE,
    read_variant,
    write_variant,
)

DECODE, ONE_CORE, DECODE_VARIANT = "decode", "one core", "100 B values, kernel alone"
DECODE_RATE = "m_records_per_s"


def _reads(limits: Sequence[float], binding: bool = True) -> Iterator[Gate]:
    for mode in (BATCH, AVAILABLE_NOW):
        for size_bytes, limit in zip(SIZES_BYTES, limits, strict=True):
            for compression in COMPRESSIONS:
                variant = read_variant(size_bytes, compression)
                yield Gate(READ, mode, variant, ROWS_PER_S, ">=", limit, binding=binding)


def _writes(limit: float, binding: bool = True) -> Iterator[Gate]:
    for size_bytes in SIZES_BYTES:
        yield Gate(WRITE, BATCH, write_variant(size_bytes), ROWS_PER_S, ">=", limit, binding=binding)


GATES = (
    *_reads((2.5, 1.2)),
    *_writes(1.3),
    Gate(MICRO_BATCH, NOOP, None, BATCH_MS, "<=", 250, relative=False),
    Gate(IDLE, NOOP, None, CPU_PERCENT, "<=", 5, relative=False),
    Gate(DECODE, ONE_CORE, None, DECODE_RATE, ">=", 30, relative=False),
)
AIMS = (*_reads((3, 1.5), binding=False), *_writes(2, binding=False))


def verdicts(cases: Sequence[Case]) -> list[Verdict]:
    """Return a verdict for each gate whose workload was measured."""
    return [
        Verdict(gate, case, gate.value(case, cases))
        for gate in (*GATES, *AIMS)
        for case in named(cases, gate.workload, gate.mode, gate.variant)
    ]
