"""`flowstone_pipeline`: tests of users' pipelines, here of the example that `flowstone pipeline new` writes."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from flowstone.pipeline import PipelineError
from flowstone.pipeline.operations.example import write_example

PAID = {"order_id": "o-1", "customer_id": "c-1", "country": "DE", "amount_cents": 1250}


def test_rows_are_fed_run_and_read(flowstone_pipeline, tmp_path: Path) -> None:
    write_example(tmp_path / "shop", is_yaml=True)
    shop = flowstone_pipeline(tmp_path / "shop")
    shop.feed("orders", [PAID, {**PAID, "amount_cents": 0}, {"_value": "junk"}])
    assert shop.run().letters == 2
    assert shop.rows("out") == [{"order_id": "o-1", "customer_id": "c-1", "country": "DE", "amount": 12.5}]
    assert sorted(each["stage"] for each in shop.letters()) == ["TRANSFORMATION", "VALUE_CONVERTER"]
    shop.feed("orders", [{**PAID, "order_id": "o-2"}])
    shop.run()
    assert sorted(each["order_id"] for each in shop.rows("out")) == ["o-1", "o-2"]
    with pytest.raises(PipelineError, match=r"there is no source order; did you mean orders\?"):
        shop.feed("order", [])


def test_state_across_micro_batches_and_tables_of_the_test(flowstone_pipeline, tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text(
        dedent(
            """
            from flowstone.pipeline import *

            pipeline = Pipeline("counts")
            pipeline.source("clicks", topic("clicks", value=json("user string, country string")))
            pipeline.source("names", delta("/no/such/table"))

            @pipeline.step
            def users(clicks):
                return clicks.dropDuplicates(["user"])

            pipeline.sql("named", "SELECT u.user, n.name FROM users u JOIN names n ON u.country = n.country")
            pipeline.sink("lake", "named", delta("/no/such/directory"))
            """
        )
    )
    counts = flowstone_pipeline(tmp_path)
    counts.feed("names", [{"country": "DE", "name": "Germany"}])
    for user in ("a", "b", "a"):
        counts.feed("clicks", [{"user": user, "country": "DE"}])
        counts.run()
    assert sorted(counts.rows("lake"), key=str) == [{"user": each, "name": "Germany"} for each in "ab"]
