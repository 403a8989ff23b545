"""The page that a run leaves: verdicts, medians, and what cannot be trusted."""

from __future__ import annotations

from bench.cases import Case
from bench.gates import verdicts
from bench.modes import FLOWSTONE, FLUSHED, KAFKA
from bench.plot import advantage, svg
from bench.report import page
from bench.workloads import PIPELINED, pipelined_variant


def case(ours: float, theirs: float) -> Case:
    rounds = {FLOWSTONE: [{"produce_mb_per_s": ours}], KAFKA: [{"produce_mb_per_s": theirs}]}
    return Case(PIPELINED, FLUSHED.name, pipelined_variant(16_000), "produce_mb_per_s", rounds)


def test_the_page_names_a_missed_gate() -> None:
    shown = page("title", [], [case(50, 100)], verdicts([case(50, 100)]))
    assert "| produce_mb_per_s | 0.50x | >= 3x | MISSED |" in shown


def test_the_page_of_one_broker_has_no_verdicts() -> None:
    alone = Case(PIPELINED, FLUSHED.name, "x", "produce_mb_per_s", {KAFKA: [{"produce_mb_per_s": 1.0}]})
    assert "## Gates" not in page("title", [], [alone], [])


def test_the_page_says_whose_warm_up_never_agreed() -> None:
    restless = case(300, 100)
    restless.unsettled = [KAFKA]
    assert "Warm-up rounds of kafka never agreed within 10 %." in page("title", [], [restless], [])


def test_the_plot_shows_how_many_times_better() -> None:
    assert ">3.00</text>" in svg("title", [case(300, 100)])


def test_half_the_latency_is_twice_as_good() -> None:
    assert (advantage("p99_ms", 0.5), advantage("produce_mb_per_s", 2.0)) == (2.0, 2.0)
