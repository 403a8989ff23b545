"""Medians, ratios, and the gates that compare them."""

from __future__ import annotations

import pytest

from bench.cases import Case, agree
from bench.gates import MEMORY, Verdict, verdicts
from bench.load import Figures
from bench.modes import FLOWSTONE, FLUSHED, KAFKA, NOT_FLUSHED
from bench.workloads import PIPELINED, pipelined_variant

GOOD: Figures = {"produce_mb_per_s": 3.0, "produce_cpu_s_per_gb": 0.6, "fetch_cpu_s_per_gb": 0.8}
KAFKAS: Figures = dict.fromkeys(GOOD, 1.0)


def case(mode: str, ours: list[Figures], theirs: list[Figures], connections: int = 2) -> Case:
    variant = pipelined_variant(16_000, connections)
    return Case(PIPELINED, mode, variant, "produce_mb_per_s", {FLOWSTONE: ours, KAFKA: theirs})


def missed(*cases: Case) -> list[Verdict]:
    return [verdict for verdict in verdicts(cases) if verdict.gate.binding and not verdict.passed]


def test_a_ratio_is_of_medians_so_one_odd_round_does_not_decide() -> None:
    ours = [GOOD | {"produce_mb_per_s": rate} for rate in (300.0, 1.0, 310.0)]
    theirs = [KAFKAS | {"produce_mb_per_s": rate} for rate in (100.0, 100.0, 9_000.0)]
    assert case(FLUSHED.name, ours, theirs).ratio("produce_mb_per_s") == 3.0


@pytest.mark.parametrize("mode", [NOT_FLUSHED.name, FLUSHED.name])
def test_figures_at_their_limits_pass(mode: str) -> None:
    assert missed(case(mode, [GOOD], [KAFKAS])) == []


def test_processor_time_above_its_share_misses_its_gate() -> None:
    ours = GOOD | {"produce_cpu_s_per_gb": 0.61, "fetch_cpu_s_per_gb": 1.01}
    names = [verdict.gate.metric for verdict in missed(case(NOT_FLUSHED.name, [ours], [KAFKAS]))]
    assert names == ["produce_cpu_s_per_gb", "fetch_cpu_s_per_gb"]


def test_a_side_without_a_round_that_counts_misses_the_gate() -> None:
    assert len(missed(case(FLUSHED.name, [], [KAFKAS]))) == 1


def test_only_the_load_over_two_connections_is_gated() -> None:
    assert verdicts([case(NOT_FLUSHED.name, [KAFKAS], [GOOD], connections=8)]) == []


def test_memory_is_gated_by_itself_whatever_kafka_takes() -> None:
    rounds = {FLOWSTONE: [{"peak_rss_mb": 201.0}], KAFKA: [{"peak_rss_mb": 1_000.0}]}
    (verdict,) = missed(Case(MEMORY, FLUSHED.name, "all", "peak_rss_mb", rounds))
    assert str(verdict).endswith("peak_rss_mb is 201.00, to be <= 200")


def test_one_aim_holds_our_flushed_throughput_against_kafkas_unflushed() -> None:
    flushed = case(FLUSHED.name, [GOOD | {"produce_mb_per_s": 90.0}], [KAFKAS])
    unflushed = case(NOT_FLUSHED.name, [GOOD], [KAFKAS | {"produce_mb_per_s": 100.0}])
    (verdict,) = [each for each in verdicts([unflushed, flushed]) if each.gate.kafka_mode]
    assert (verdict.value, verdict.passed, verdict.gate.binding) == (0.9, False, False)


def test_two_rounds_agree_when_a_tenth_apart_at_most() -> None:
    assert agree(90.0, 100.0)
    assert not agree(100.0, 89.0)
