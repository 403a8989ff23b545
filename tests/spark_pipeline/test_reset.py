"""`reset` and `plan`: back to a named position and undone, and what changed since the last run."""

from __future__ import annotations

import json

import pytest
from confluent_kafka.admin import AdminClient

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.operations import replay
from flowstone.pipeline.state import StateStore
from tests.spark_pipeline.commands import command, document, refusal
from tests.spark_pipeline.shop import STEPS, Shop, order


def test_a_reset_reads_again_and_is_undone(shop: Shop) -> None:
    directory = str(shop.directory)
    assert "has never run" in refusal(shop, "reset", directory, "--to", "earliest", "--yes")
    shop.feed(map(order, range(10)))
    shop.run()
    assert "neither a saved point (none) nor a position" in refusal(shop, "reset", directory, "--to", "soon", "--yes")
    assert "use --yes to confirm" in refusal(shop, "reset", directory, "--to", "earliest")
    assert "is not one of them" in refusal(
        shop, "reset", directory, "--yes", "--to", json.dumps({shop.topic("in"): {"0": 99}})
    )
    with StateStore(shop.broker.bootstrap, shop.name) as store:
        run = store.begin_run(None)
        assert "is run already" in refusal(shop, "reset", directory, "--to", "earliest", "--yes")
        run.end("over")
    dry = document(shop, "reset", directory, "--to", "earliest", "--dry-run")
    assert (dry["done"], dry["queries"][0]["records_again"]) == (False, 10)

    done = document(shop, "reset", directory, "--to", "earliest", "--save-as", "first", "--yes")
    assert (done["point"], done["queries"][0]["records_again"]) == ("first", 10)
    assert document(shop, "status", directory)["queries"][0]["lag_records"] == 10
    shop.run()
    assert len(shop.out()) == 20
    command(shop, "reset", directory, "--to", "first", "--yes")
    shop.feed([order(10)])
    assert shop.run().rows_in == 1, "the old checkpoint goes on where it was"
    assert len(shop.out()) == 21


def test_a_plan_says_what_changed_and_what_that_does(shop: Shop) -> None:
    directory = str(shop.directory)
    assert document(shop, "plan", directory)["first_run"]
    shop.feed([order(1)])
    shop.run()
    assert "nothing changed since the last run" in command(shop, "plan", directory)
    shop.declare(STEPS.replace("return orders", "# a comment\n        return  orders"))
    assert document(shop, "plan", directory)["nodes"] == []
    shop.declare(
        STEPS.replace("id IS NOT NULL", "id > ''").replace("total > 0", "total > 1")
        + """
    @pipeline.step
    def sums(orders):
        return orders.groupBy("customer").count()

    pipeline.sink("counts", sums, topic("{name}-sums", key="customer"))
    """
    )
    found = document(shop, "plan", directory)
    changes = {each["node"]: (each["change"], each["parts"]) for each in found["nodes"]}
    assert changes == {
        "checked": ("changed", ["code", "expectations"]),
        "sums": ("added", []),
        "counts": ("added", []),
    }
    assert {each["query"]: each["checkpoint"] for each in found["queries"]} == {
        shop.name: "continues",
        f"{shop.name}.sums": "new",
    }
    shop.run()
    shop.declare(STEPS.replace("return orders.where", "return orders.distinct().where"))
    again = document(shop, "plan", directory)
    assert {each["query"]: each["checkpoint"] for each in again["queries"]}[f"{shop.name}.sums"] == "not run any more"


def recreate(shop: Shop) -> None:
    admin = AdminClient({"bootstrap.servers": shop.broker.bootstrap, "log_level": 0})
    admin.delete_topics([shop.topic("in")])[shop.topic("in")].result(20)
    shop.broker.create_topic(shop.topic("in"))


def test_a_source_that_was_created_again_is_not_read_on_at_the_old_offsets(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = str(shop.directory)
    shop.feed(map(order, range(3)))
    shop.run()
    with monkeypatch.context() as patch:
        patch.setattr(replay, "write_all", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            document(shop, "replay", directory, "--from", "earliest", "--yes")
    recreate(shop)
    shop.feed(map(order, range(10, 15)))
    with pytest.raises(PipelineError, match="was deleted and created again") as refused:
        shop.run()
    assert "flowstone pipeline reset --to earliest" in str(refused.value)
    with pytest.raises(Exception, match="was deleted and created again"):
        document(shop, "replay", directory, "--continue")
    document(shop, "reset", directory, "--to", "earliest", "--yes")
    shop.run()
    assert shop.rows() == [order(number) for number in (*range(3), *range(10, 15))]
