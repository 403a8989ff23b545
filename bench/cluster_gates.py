"""The gates and aims of the cluster benchmark. Pure: cases in, verdicts out.

Kafka does not flush. `EQUAL` compares it with a Flowstone that does not flush either, `DEFAULTS` with one that has
every acknowledged record on three disks.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.cases import Case, named
from bench.gates import Gate, Verdict

EQUAL, DEFAULTS = "not flushed", "each at its defaults"
THROUGHPUT, SYNCHRONOUS, FAILOVER, MANY, IDLE = "throughput", "synchronous", "failover", "1,000 partitions", "idle"

GATES = (
    Gate(THROUGHPUT, EQUAL, None, "produce_mb_per_s", ">=", 1.2),
    Gate(THROUGHPUT, DEFAULTS, None, "produce_mb_per_s", ">=", 1.0),
    Gate(THROUGHPUT, EQUAL, None, "produce_cpu_s_per_gb", "<=", 0.6),
    Gate(SYNCHRONOUS, EQUAL, None, "p50_ms", "<=", 0.8),
    Gate(SYNCHRONOUS, EQUAL, None, "p99_ms", "<=", 0.8),
    Gate(FAILOVER, DEFAULTS, None, "longest_gap_s", "<=", 0.8),
    Gate(MANY, DEFAULTS, None, "all_acknowledged_s", "<=", 15, relative=False),
    Gate(IDLE, DEFAULTS, None, "rss_mb", "<=", 350, relative=False),
)
AIMS = (
    Gate(THROUGHPUT, EQUAL, None, "produce_mb_per_s", ">=", 3, binding=False),
    Gate(FAILOVER, DEFAULTS, None, "longest_gap_s", "<=", 3, relative=False, binding=False),
)


def verdicts(cases: Sequence[Case]) -> list[Verdict]:
    return [
        Verdict(gate, case, gate.value(case, cases))
        for gate in (*GATES, *AIMS)
        for case in named(cases, gate.workload, gate.mode, gate.variant)
    ]
