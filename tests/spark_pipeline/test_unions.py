"""Unions of topics: each topic is read once, by its own query, which applies the union to its rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame

from flowstone.pipeline import tables
from flowstone.pipeline.engine import queries
from flowstone.pipeline.operations.run import RunSummary
from tests.spark_pipeline.commands import document
from tests.spark_pipeline.shop import Shop, order

HEAD = """
    from flowstone.pipeline import *

    pipeline = Pipeline("{name}", bootstrap="{bootstrap}")
    pipeline.source("eu", topic("{name}-in", value=json("id string, customer string, total double")))
    pipeline.source("us", topic("{name}-us", value=json("id string, customer string, total double")))
"""
STEPS = """
    @pipeline.step
    def priced(us):
        return us.withColumn("total", us.total * 2)

    pipeline.sql("both", "SELECT * FROM eu UNION ALL SELECT * FROM priced", expect=[
        expect("positive", "total > 0", otherwise="divert"),
    ])
    pipeline.sink("out", "both", topic("{name}-out", key="customer"))
"""
EU, US = [order(number) for number in range(20)], [order(number) for number in range(20, 50)]
EXPECTED = [*EU, *({**each, "total": 2.0} for each in US)]


@pytest.fixture
def union(shop: Shop) -> Shop:
    shop.broker.create_topic(shop.topic("us"))
    shop.declare(STEPS, head=HEAD)
    return shop


def feed_us(shop: Shop, rows: list[object]) -> None:
    producer = Producer(shop.broker.client_config)
    for row in rows:
        producer.produce(shop.topic("us"), row if isinstance(row, bytes) else json.dumps(row).encode())
    assert producer.flush(30) == 0


def run_both(shop: Shop) -> RunSummary:
    shop.feed(EU)
    feed_us(shop, US)
    return shop.run()


def by_id(rows: DataFrame) -> list[dict[str, object]]:
    return sorted((each.asDict() for each in rows.collect()), key=lambda each: each["id"])


def test_each_record_is_read_once_and_letters_are_written_with_the_rows(union: Shop) -> None:
    union.feed([*EU, b"junk", order(90, -1.0)])
    feed_us(union, [*US, order(91, -1.0)])
    summary = union.run()
    assert (summary.rows_in, summary.rows_out, summary.letters) == (len(EU) + len(US) + 3, {"out": 50}, 3)
    assert union.rows() == EXPECTED
    assert {each.value for each in union.out("letters")} == {
        b"junk",
        json.dumps(order(90, -1.0)).encode(),
        json.dumps(order(91, -1.0)).encode(),
    }


@pytest.mark.parametrize("table", ['delta("lake")', 'parquet("lake")', 'delta("lake", keys=["id"])'])
def test_two_queries_write_one_table(union: Shop, table: str) -> None:
    union.declare(STEPS + f'    pipeline.sink("lake", "both", {table})', head=HEAD)
    run_both(union)
    kind = table.partition("(")[0]
    assert by_id(tables.read(union.spark, kind, str(union.directory / "lake"), {})) == EXPECTED


def test_a_step_with_state_behind_a_union_reads_both_topics(union: Shop) -> None:
    union.declare(
        STEPS
        + """
    @pipeline.step
    def once(both):
        return both.dropDuplicates(["id"])

    pipeline.sink("once-out", once, topic("{name}-once"))
    pipeline.sql("all_rows", "SELECT id FROM once UNION ALL SELECT id FROM eu")
    pipeline.sink("all-out", "all_rows", topic("{name}-all"))
""",
        head=HEAD,
    )
    union.feed([*EU, EU[0]])
    feed_us(union, [*US, EU[1]])
    assert union.run().rows_out == {"out": 52, "once-out": 50, "all-out": 71}
    assert union.rows("once") == EXPECTED
    assert [each["id"] for each in union.rows("all")] == sorted(each["id"] for each in [*EXPECTED, *EU, EU[0]])


def test_letters_of_a_union_are_retried_through_it(union: Shop) -> None:
    union.feed([order(1, -1.0)])
    feed_us(union, [order(2, -1.0)])
    union.run()
    union.declare(STEPS.replace("total > 0", "total > -5"), head=HEAD)
    done = document(union, "letters", "retry", str(union.directory), "--all")
    assert (done["retried"], done["rows_out"], done["letters_again"]) == (2, {"out": 2}, 0)
    assert union.rows() == [order(1, -1.0), order(2, -2.0)]


def test_a_table_of_a_union_is_computed_anew_and_replayed(union: Shop) -> None:
    path, directory = union.directory / "lake", str(union.directory)
    union.declare(STEPS + '    pipeline.sink("lake", "both", delta("lake"))', head=HEAD)
    run_both(union)
    union.declare(STEPS.replace("* 2", "* 3") + '    pipeline.sink("lake", "both", delta("lake"))', head=HEAD)
    [done] = document(union, "backfill", directory, "--chunk", "7", "--yes")["tables"]
    expected = [*EU, *({**each, "total": 3.0} for each in US)]
    assert (done["rows"], by_id(tables.read(union.spark, "delta", str(path), {}))) == (50, expected)
    again = document(union, "replay", directory, "--from", "earliest", "--aside", "-again", "--chunk", "7")
    assert again["rows_out"] == {"out": 50, "lake": 50}
    assert by_id(tables.read(union.spark, "delta", f"{path}-again", {})) == expected
    assert union.rows("out-again") == expected


def test_a_union_that_was_a_query_of_its_own_stays_one(union: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The query's checkpoint says which of its records are written."""
    with monkeypatch.context() as patch:
        patch.setattr(queries, "is_union", lambda *_: False)
        run_both(union)
    union.feed([order(60)])
    feed_us(union, [order(61)])
    union.run()
    assert union.rows() == [*EXPECTED, order(60), order(61, 2.0)]
    checkpoints = union.directory / ".flowstone/checkpoints"
    assert {each.name for each in checkpoints.iterdir()} == {f"{union.name}.{each}" for each in ("eu", "us", "both")}


def test_a_replay_writes_letters_once_though_two_queries_read_their_topic(shop: Shop, tmp_path: Path) -> None:
    shop.declare(
        """
        @pipeline.step
        def counts(orders):
            return orders.groupBy("customer").count()

        pipeline.sink("counts-out", counts, topic("{name}-counts", key="customer"))
        """
    )
    shop.feed([order(1), b"junk"])
    shop.run()
    assert len(shop.out("letters")) == 1
    again = document(shop, "replay", str(shop.directory), "--from", "earliest", "--aside", "-again")
    assert (again["letters"], again["rows_out"], len(shop.out("letters-again"))) == (1, {"counts-out": 1}, 1)


def test_rows_that_a_step_with_state_diverts_become_letters(shop: Shop) -> None:
    shop.declare(
        """
        @pipeline.step(expect=[expect("few", "count < 3", otherwise="divert")])
        def counts(orders):
            return orders.groupBy("customer").count()

        pipeline.sink("counts-out", counts, topic("{name}-counts", key="customer"))
        """
    )
    shop.feed([{"id": str(number), "customer": "ab"[number > 1]} for number in range(5)])
    summary = shop.run()
    assert shop.rows("counts") == [{"customer": "a", "count": 2}]
    assert (summary.letters, [json.loads(each.value) for each in shop.out("letters")]) == (
        1,
        [{"customer": "b", "count": 3}],
    )
