"""The gates of the pipeline benchmark: which jobs are compared, and what is shown."""

from __future__ import annotations

from bench.cases import Case
from bench.modes import FLOWSTONE
from bench.pipeline.gates import MODE, WORKLOAD, page, verdicts
from bench.pipeline.jobs import BARE, ROWS_PER_S, STOCK, STOCK_PARQUET


def case(**rates: float) -> Case:
    names = {"ours": FLOWSTONE, "bare": BARE, "stock": STOCK, "files": STOCK_PARQUET}
    rounds = {names[name]: [{ROWS_PER_S: rate}] for name, rate in rates.items()}
    return Case(WORKLOAD, MODE, "1,000 events", ROWS_PER_S, rounds)


def test_each_gate_compares_with_its_own_job() -> None:
    found = verdicts([case(ours=90, bare=100, stock=75, files=80)])
    assert [(each.value, each.passed) for each in found] == [(1.2, True), (0.9, True), (1.125, False)]


def test_a_slow_pipeline_misses_the_binding_gates() -> None:
    found = verdicts([case(ours=80, bare=100, stock=75, files=80)])
    assert [each.passed for each in found if each.gate.binding] == [False, False]


def test_a_job_without_rounds_is_a_missed_gate() -> None:
    assert [each.passed for each in verdicts([case(ours=80)])] == [False, False, False]


def test_the_page_names_what_each_gate_compares() -> None:
    cases = [case(ours=90, bare=100, stock=75, files=80)]
    text = page("Pipelines", [], cases, verdicts(cases))
    assert "gate 1: compared with stock connector" in text
    assert "| rows_per_s | 90 | 100 | 0.9 | 75 | 1.2 | 80 | 1.12 |" in text
