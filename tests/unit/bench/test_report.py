"""Medians, ratios and gates."""

from __future__ import annotations

from bench.load import Figures
from bench.report import FLOWSTONE, FLUSHED, KAFKA, METRICS, NOT_FLUSHED, Case, missed_gates, table


def figures(**named: float) -> Figures:
    return Figures(**{metric: named.get(metric, 1.0) for metric in METRICS})


def case(mode: str, ours: list[Figures], theirs: list[Figures]) -> Case:
    return Case(mode, 16_000, {FLOWSTONE: ours, KAFKA: theirs})


def test_a_ratio_is_of_medians_so_one_odd_round_does_not_decide() -> None:
    ours = [figures(produce_mb_per_s=rate) for rate in (300, 1, 310)]
    theirs = [figures(produce_mb_per_s=rate) for rate in (100, 100, 9_000)]
    assert case(FLUSHED, ours, theirs).ratio("produce_mb_per_s") == 3.0


def test_flushed_throughput_equal_to_kafkas_passes() -> None:
    assert missed_gates([case(FLUSHED, [figures()], [figures()])]) == []


def test_throughput_not_flushed_has_to_be_higher_than_kafkas() -> None:
    equal = case(NOT_FLUSHED, [figures(produce_cpu_s_per_gb=0.7)], [figures()])
    assert missed_gates([equal]) == [
        "not flushed, batches of 16,000 bytes: produce_mb_per_s is 1.00x Kafka's, to be > 1.0"
    ]


def test_processor_time_above_its_share_misses_its_gate() -> None:
    ours = figures(produce_mb_per_s=2.0, produce_cpu_s_per_gb=0.71, fetch_cpu_s_per_gb=1.01)
    missed = missed_gates([case(NOT_FLUSHED, [ours], [figures()])])
    assert [miss.split(": ")[1].split()[0] for miss in missed] == ["produce_cpu_s_per_gb", "fetch_cpu_s_per_gb"]


def test_a_side_without_a_round_that_counts_misses_the_gate() -> None:
    assert len(missed_gates([case(FLUSHED, [], [figures()])])) == 1


def test_the_table_names_a_missed_gate() -> None:
    shown = table([case(FLUSHED, [figures(produce_mb_per_s=0.5)], [figures()])])
    assert "0.50  >= 1.0 MISSED" in shown


def test_the_table_of_one_broker_has_no_verdicts() -> None:
    shown = table([Case(FLUSHED, 16_000, {KAFKA: [figures()]})])
    assert "MISSED" not in shown
