"""`letters`: what failed is listed, retried after a fix exactly once, or dropped."""

from __future__ import annotations

import json

import pytest

from flowstone.pipeline.operations.letters import retrying as letter_retry
from tests.spark_pipeline.commands import command, document, refusal
from tests.spark_pipeline.shop import STEPS, Shop, order


def listed(shop: Shop, *options: str) -> list[dict[str, object]]:
    return [
        json.loads(line)
        for line in command(shop, "letters", "list", str(shop.directory), "--json", *options).splitlines()
    ]


def test_letters_are_listed_dropped_and_retried_after_a_fix(shop: Shop) -> None:
    directory = str(shop.directory)
    assert "no open dead letters" in command(shop, "letters", "list", directory)
    shop.feed([order(1), order(2, -1.0), order(3, -2.0), b"junk"])
    shop.run()
    found = {each["value"]: each for each in listed(shop)}
    assert found.keys() == {json.dumps(order(2, -1.0)), json.dumps(order(3, -2.0)), "junk"}
    junk = found["junk"]
    assert junk["cause"]["exception.class.name"] == "MalformedValue"
    assert junk["record"].startswith(f"{shop.topic('in')}-")
    assert "MalformedValue 1" in command(shop, "letters", "list", directory)
    assert document(shop, "letters", "show", directory, junk["letter"])["value_hex"] == b"junk".hex()

    assert "use --yes to confirm" in refusal(shop, "letters", "drop", directory, junk["letter"])
    assert document(shop, "letters", "drop", directory, junk["letter"], "--yes") == {"dropped": 1}
    assert "is dropped already" in refusal(shop, "letters", "retry", directory, junk["letter"])
    assert "there is no letter 9-9" in refusal(shop, "letters", "retry", directory, "9-9")
    assert [each["status"] for each in listed(shop, "--done")].count("dropped") == 1

    shop.declare(STEPS.replace("total > 0", "total > -2"))
    done = document(shop, "letters", "retry", directory, "--all")
    assert done == {"retried": 2, "rows_out": {"out": 1}, "letters_again": 1, "without_origin": 0}
    assert shop.rows() == [order(1), order(2, -1.0)]
    [again] = listed(shop)
    assert again["record"] == found[json.dumps(order(3, -2.0))]["record"]
    assert again["headers"] == [["flowstone.retries", "1"]]


def test_a_retry_that_was_interrupted_is_finished_and_writes_nothing_twice(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = str(shop.directory)
    shop.feed([order(1, -1.0), order(2, -1.0)])
    shop.run()
    shop.declare(STEPS.replace("total > 0", "total > -5"))
    store = letter_retry.store_record
    calls = []

    def die_at_the_end(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == 2:
            raise RuntimeError("died after the transaction")
        return store(*arguments)

    monkeypatch.setattr(letter_retry, "store_record", die_at_the_end)
    with pytest.raises(RuntimeError, match="died"):
        document(shop, "letters", "retry", directory, "--all")
    assert len(shop.rows()) == 2
    monkeypatch.setattr(letter_retry, "store_record", store)
    document(shop, "letters", "retry", directory, "--all")
    assert len(shop.rows()) == 2
    assert listed(shop) == []


def test_letters_of_a_step_with_state_go_back_to_their_topic(shop: Shop) -> None:
    directory = str(shop.directory)
    shop.feed([b"junk"])
    shop.run()
    shop.declare(
        """
        @pipeline.step
        def sums(orders):
            return orders.groupBy("customer").count()

        pipeline.sink("counts", sums, topic("{name}-sums", key="customer"))
        """
    )
    assert "the step sums keeps state" in refusal(shop, "letters", "retry", directory, "--all")
    assert document(shop, "letters", "retry", directory, "--all", "--to-source")["retried"] == 1
    found = sorted((list(each.headers) for each in shop.out("in") if each.value == b"junk"), key=len)
    assert found == [[], [("flowstone.retries", b"1")]]
