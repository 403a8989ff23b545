"""What is told of costs that grow."""

from __future__ import annotations

from bench.growth import Growth


def test_a_figure_that_should_be_flat_and_is_not_is_told_with_how_much() -> None:
    growth = Growth("title", {"1": {"cpu_us": 10.0}, "1,000": {"cpu_us": 12.5}}, ["cpu_us"])
    assert growth.grown() == ["cpu_us is not flat: 1.25 times from least to most"]


def test_a_fifth_more_is_still_flat() -> None:
    growth = Growth("title", {"1": {"cpu_us": 10.0}, "1,000": {"cpu_us": 12.0}}, ["cpu_us"])
    assert growth.grown() == []
    assert "Flat within 20%: cpu_us." in growth.table()


def test_rows_with_other_figures_share_a_table() -> None:
    table = Growth("title", {"one": {"a": 1.0}, "other": {"b": 2.0}}).table()
    assert "| one | 1 | - |" in table
    assert "| other | - | 2 |" in table
