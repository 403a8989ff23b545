"""`replay` and `backfill`: records of the past again, into the sinks, aside, or into a table that is swapped in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from flowstone.pipeline.operations import backfill, replay
from tests.spark_pipeline.commands import command, document, refusal
from tests.spark_pipeline.shop import STEPS, Shop, order


def test_a_range_is_replayed_aside_or_into_the_sinks(shop: Shop) -> None:
    directory = str(shop.directory)
    shop.feed([*map(order, range(20)), order(20, -1.0)])
    shop.run()
    in_0 = [each for each in shop.out("in") if each.partition == 0 and each.offset < 5]
    first = [each for each in in_0 if b"-1.0" not in each.value]
    end = json.dumps({shop.topic("in"): {"0": len(in_0), "1": 0}})
    shop.declare(STEPS.replace("return orders", 'return orders.withColumn("new", orders.total)'))
    aside = document(shop, "replay", directory, "--from", "earliest", "--aside", "-again", "--chunk", "4")
    assert (aside["rows_out"], aside["letters"]) == ({"out": 20}, 1)
    assert len(shop.rows()) == 20
    assert [row["new"] for row in shop.rows("out-again")] == [1.0] * 20
    assert len(shop.out("letters-again")) == 1
    assert "use --yes to confirm" in refusal(shop, "replay", directory, "--from", "earliest")
    again = document(shop, "replay", directory, "--from", "earliest", "--to", end, "--yes")
    assert again["rows_out"]["out"] == len(first)
    assert len(shop.rows()) == 20 + len(first)


def test_an_interrupted_replay_is_continued_and_writes_nothing_twice(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = str(shop.directory)
    shop.feed(map(order, range(30)))
    write, calls = replay.write_all, []

    def die_in_the_second(*arguments: object) -> None:
        calls.append(arguments)
        write(*arguments)
        if len(calls) == 2:
            raise RuntimeError("died after a transaction")

    monkeypatch.setattr(replay, "write_all", die_in_the_second)
    with pytest.raises(RuntimeError, match="died"):
        document(shop, "replay", directory, "--from", "earliest", "--chunk", "5", "--yes")
    assert 0 < len(shop.rows()) < 30
    monkeypatch.setattr(replay, "write_all", write)
    assert "was interrupted" in refusal(shop, "replay", directory, "--from", "earliest", "--yes")
    document(shop, "replay", directory, "--continue")
    assert shop.rows() == [order(number) for number in range(30)]
    assert "no replay was interrupted" in refusal(shop, "replay", directory, "--abandon")


TABLE = """
    @pipeline.step
    def checked(orders):
        return orders.where("id IS NOT NULL").withColumn("gross", orders.total * 2)

    pipeline.sink("table", checked, delta("{path}"))
    pipeline.sink("out", checked, topic("{name}-out"))
"""


def test_a_table_is_computed_anew_and_swapped_while_the_stream_goes_on_after_it(shop: Shop, tmp_path: Path) -> None:
    directory, path = str(shop.directory), tmp_path / "orders"
    steps = TABLE.replace("{path}", str(path))
    shop.declare(steps)
    assert "never run" in refusal(shop, "backfill", directory, "--yes")
    shop.feed(map(order, range(10)))
    shop.run()
    shop.feed(map(order, range(10, 15)))  # not processed yet
    shop.declare(steps.replace("* 2", "* 3"))
    assert "a backfill swaps directories" in refusal(shop, "backfill", directory, "--sink", "out", "--yes")
    [done] = document(shop, "backfill", directory, "--chunk", "3", "--yes")["tables"]
    assert (done["rows"], done["path"]) == (10, str(path))
    assert sorted(DeltaTable(str(path)).to_pyarrow_table()["gross"].to_pylist()) == [3.0] * 10
    assert DeltaTable(done["before"]).to_pyarrow_table()["gross"].to_pylist() == [2.0] * 10
    shop.run()
    assert sorted(DeltaTable(str(path)).to_pyarrow_table()["id"].to_pylist()) == [f"{n:05}" for n in range(15)]

    path.rename(f"{path}{backfill.BEFORE}x")
    Path(f"{path}{backfill.SIDE}x").mkdir()
    backfill.finish_swap(shop.load().sink("table"))
    assert path.exists(), "a swap that was interrupted between its renames is completed"
    assert "table" in command(shop, "graph", directory)
