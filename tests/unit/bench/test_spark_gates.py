"""The gates of the Spark benchmark: which there are, and what a page says of all the systems."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="the format needs PySpark")

from bench.cases import Case
from bench.modes import FLOWSTONE, KAFKA
from bench.plot import svg
from bench.spark.gates import GATES, verdicts
from bench.spark.records import values
from bench.spark.report import page
from bench.spark.small_batches import BATCH_MS, MICRO_BATCH, NOOP
from bench.spark.systems import STOCK_ON_FLOWSTONE
from bench.spark.throughput import AVAILABLE_NOW, BATCH, READ, ROWS_PER_S, WRITE, read_variant, write_variant


def read(ours: float, theirs: float) -> Case:
    rates = {FLOWSTONE: ours, STOCK_ON_FLOWSTONE: 2.0, KAFKA: theirs}
    rounds = {name: [{ROWS_PER_S: rate}] for name, rate in rates.items()}
    return Case(READ, BATCH, read_variant(100, "lz4"), ROWS_PER_S, rounds)


def test_reads_are_held_to_the_stock_connector_on_kafka() -> None:
    gate, aim = verdicts([read(2.5, 1.0)])
    assert (gate.passed, aim.passed) == (True, False)
    assert not verdicts([read(2.4, 1.0)])[0].passed


def test_a_small_micro_batch_is_held_to_a_time_of_its_own() -> None:
    rounds = {FLOWSTONE: [{BATCH_MS: 251.0}], KAFKA: [{BATCH_MS: 1000.0}]}
    (verdict,) = verdicts([Case(MICRO_BATCH, NOOP, "x", BATCH_MS, rounds)])
    assert not verdict.passed


def test_every_size_codec_and_mode_has_its_gate() -> None:
    gated = {(gate.workload, gate.mode, gate.variant) for gate in GATES}
    for mode in (BATCH, AVAILABLE_NOW):
        for compression in ("none", "lz4"):
            assert {(READ, mode, read_variant(size, compression)) for size in (100, 1_000)} <= gated
    assert {(WRITE, BATCH, write_variant(size)) for size in (100, 1_000)} <= gated


def test_the_page_shows_every_system_and_how_many_times_it_goes_into_ours() -> None:
    case = read(6.0, 2.0)
    shown = page("title", [], [case], verdicts([case]))
    assert "| rows_per_s | 6 | 2 | 3 | 2 | 3 |" in shown
    assert "| read, batch: 100 B values, lz4 | rows_per_s | 3.00x | >= 2.5x | passed |" in shown
    assert "3.00" in svg("title", [case])


def test_values_are_as_long_as_they_should_be_and_the_same_for_every_broker() -> None:
    assert {len(value) for value in values(1_000)} == {1_000}
    assert values(100) == values(100)
