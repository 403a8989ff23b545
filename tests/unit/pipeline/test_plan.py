"""The plan of two declarations, without Spark."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flowstone.pipeline.operations.plan import CANNOT, CONTINUES, UNSURE, plan
from flowstone.pipeline.state import Declaration, DeclaredNode, DeclaredQuery

NODES = {
    "orders": DeclaredNode("source", (), {"topics": "t", "starting": "s"}),
    "sums": DeclaredNode("step", ("orders",), {"code": "c", "expectations": "e"}),
    "out": DeclaredNode("sink", ("sums",), {"path": "p"}),
}
OLD = Declaration("h", NODES, {"q": DeclaredQuery(("orders",), ("sums",))}, {"spark.sql.shuffle.partitions": "2"})


def changed(node: str, **parts: str) -> Declaration:
    return replace(OLD, nodes={**NODES, node: replace(NODES[node], parts={**NODES[node].parts, **parts})})


@pytest.mark.parametrize(
    ("new", "checkpoint"),
    [
        (OLD, CONTINUES),
        (changed("orders", starting="x"), CONTINUES),
        (changed("sums", expectations="x"), CONTINUES),
        (changed("out", path="x"), CONTINUES),
        (replace(OLD, settings={}), CONTINUES),
        (changed("sums", code="x"), UNSURE),
        (changed("orders", topics="x"), CANNOT),
        (replace(OLD, queries={"q": DeclaredQuery(("orders", "more"), ("sums",))}), CANNOT),
        (replace(OLD, queries={"q": DeclaredQuery(("orders",), ())}), CANNOT),
    ],
)
def test_which_checkpoint_can_go_on(new: Declaration, checkpoint: str) -> None:
    [query] = plan(OLD, new).queries
    assert query.checkpoint == checkpoint
    assert plan(OLD, new).can_continue == (checkpoint != CANNOT)


def test_a_changed_step_names_the_sinks_behind_it() -> None:
    [change] = plan(OLD, changed("sums", code="x")).nodes
    assert change.parts == ("code",)
    assert change.consequence.startswith("rows of out are computed so from the next micro-batch on")


def test_a_start_that_changed_has_no_effect() -> None:
    [change] = plan(OLD, changed("orders", starting="x")).nodes
    assert change.consequence.startswith("nothing")
