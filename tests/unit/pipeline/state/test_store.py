"""Tests of the store against a real broker: what is written is read by others, and two runs exclude each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flowstone.embedded import Broker
from flowstone.pipeline import PipelineError
from flowstone.pipeline.state import Declaration, DeclaredNode, DeclaredQuery, PipelineState, StateStore


@pytest.fixture
def other(broker: Broker, pipeline: str) -> Iterator[StateStore]:
    with StateStore(broker.bootstrap, pipeline) as store:
        yield store


def test_the_state_of_a_pipeline_that_never_ran_is_empty(store: StateStore, pipeline: str) -> None:
    assert store.load() == PipelineState(pipeline)
    assert store.load().is_empty


def test_loading_does_not_create_the_topic(pipeline: str) -> None:
    with Broker() as fresh, StateStore(fresh.bootstrap, pipeline) as store:
        assert store.load().is_empty
        with pytest.raises(Exception, match="_flowstone"):
            fresh.records("_flowstone.pipelines")


def test_positions_are_read_by_another_store(store: StateStore, other: StateStore) -> None:
    assert store.positions("shop") is None
    store.store_positions("shop", {"orders": '{"orders":{"0":5}}'})
    assert other.positions("shop") == {"orders": '{"orders":{"0":5}}'}


def test_a_declaration_is_read_as_it_was_written(store: StateStore, other: StateStore) -> None:
    nodes = {"checked": DeclaredNode("step", ("orders",), {"text": "ab12"})}
    declared = Declaration("hash", nodes, {"shop": DeclaredQuery(("orders",), ("checked",))}, {"a": "b"}, "0.1", "4.3")
    store.store_declaration(declared)
    found = other.load().declaration
    assert found is not None
    assert found.stored_at_ms > 0
    assert (found.nodes, found.queries, found.settings) == (declared.nodes, declared.queries, declared.settings)


def test_a_query_keeps_its_checkpoint(store: StateStore, other: StateStore) -> None:
    first = store.checkpoint("shop.late", "/checkpoints/")
    assert first.path == f"/checkpoints/shop.late/{first.id}"
    assert other.checkpoint("shop.late", "/elsewhere") == first


def test_a_second_run_is_refused_by_a_sentence_that_names_the_first(
    store: StateStore, other: StateStore, pipeline: str
) -> None:
    run = store.begin_run(None)
    with pytest.raises(PipelineError, match=rf"pipeline {pipeline} is run already, by process \d+ on .* since 2\d+-"):
        other.begin_run(None)
    assert run.end("stopped")
    other.begin_run(None).end("stopped")


def test_a_second_run_in_the_same_directory_is_refused_at_once(
    store: StateStore, other: StateStore, tmp_path: Path
) -> None:
    run = store.begin_run(tmp_path)
    with pytest.raises(PipelineError, match=r"is run already, by process \d+"):
        other.begin_run(tmp_path)
    run.end("stopped")
    other.begin_run(tmp_path).end("stopped")


def test_counters_are_sums_over_the_run(store: StateStore, other: StateStore, pipeline: str) -> None:
    run = store.begin_run(None)
    run.record_batch("shop", 4, 10, {"good": 9}, 1, {"checked.positive": 1}, 200)
    run.record_batch("shop", 5, 20, {"good": 18, "late": 1}, 1, {"checked.positive": 1}, 300)
    assert run.end("stopped")
    progress = other.load().progress["shop"]
    assert (progress.batch_number, progress.batches, progress.rows_in, progress.letters) == (5, 2, 30, 2)
    assert progress.rows_out == {"good": 27, "late": 1}
    assert progress.expectations == {"checked.positive": 2}
    assert other.load().runs[0].rows_in == 30


def test_runs_and_errors_are_limited(store: StateStore, other: StateStore) -> None:
    for number in range(52):
        run = store.begin_run(None)
        run.record_error("shop", f"error {number}", 1.0)
        run.end("failed")
    state = other.load()
    assert [each.number for each in state.runs] == list(range(52, 2, -1))
    assert [each.message for each in state.errors] == [f"error {number}" for number in range(51, 31, -1)]
    assert state.runs[0].restarts == 1


def test_a_long_error_keeps_its_beginning_and_end(store: StateStore, other: StateStore) -> None:
    run = store.begin_run(None)
    run.record_error("shop", f"first{'x' * 10_000}last")
    run.end("failed")
    message = other.load().errors[0].message
    assert message.startswith("first")
    assert message.endswith("last")
    assert len(message) < 2100


@pytest.mark.parametrize("name", ["a/b", "ü €", "%2F", "a b\n"])
def test_names_with_odd_characters_do_not_mix(broker: Broker, name: str) -> None:
    with StateStore(broker.bootstrap, name) as store, StateStore(broker.bootstrap, name.partition("/")[0]) as other:
        store.store_positions(f"{name}.x/y", {"orders": "{}"})
        assert store.positions(f"{name}.x/y") == {"orders": "{}"}
        if "/" in name:
            assert other.load().is_empty
