"""`graph`: a flowchart of the example."""

from __future__ import annotations

from pathlib import Path

from flowstone.pipeline.authoring.loading import load
from flowstone.pipeline.operations.example import write_example
from flowstone.pipeline.operations.graph import mermaid

CHART = """flowchart LR
    source_orders[("orders: topic orders")]
    step_payable["payable<br/>has_an_amount: divert<br/>has_a_customer: keep"]
    sink_out[("out: topic shop-payable")]
    source_orders --> step_payable
    step_payable --> sink_out
    letters[("topic shop-letters")]
    source_orders -.-> letters
    step_payable -.-> letters"""


def test_both_forms_of_the_example_have_this_chart(tmp_path: Path) -> None:
    for name, is_yaml in (("python", False), ("yaml", True)):
        write_example(tmp_path / name / "shop", is_yaml=is_yaml)
        assert mermaid(load(tmp_path / name / "shop")) == CHART
