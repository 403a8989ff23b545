"""Pipelines that write a topic and tables: what is in each after failures between them, and the compact command."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from pyspark.sql import SparkSession

from flowstone.pipeline import tables
from flowstone.pipeline.engine import outputs
from flowstone.pipeline.model import TableSink
from tests.spark_pipeline.shop import STEPS, Shop, order

COMMAND_TIMEOUT_S = 120
SINKS = """
    pipeline.sink("all", checked, delta("lake/all"))
    pipeline.sink("latest", checked, iceberg("lake/shop.latest", keys=["customer"], delete_when="total > 100"))
    pipeline.sink("files", checked, parquet("lake/files", partition_by=["customer"]))
"""


def rows_of(spark: SparkSession, shop: Shop, name: str) -> list[dict[str, Any]]:
    sink = shop.load().sink(name)
    assert sink is not None
    target = sink.target
    assert isinstance(target, TableSink)
    found = tables.read(spark, target.kind, target.path, target.options).collect()
    return sorted((row.asDict() for row in found), key=lambda row: str(row["id"]))


def test_a_topic_and_tables_have_each_row_once_although_a_run_fails_between_them(
    spark: SparkSession, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.declare(STEPS + SINKS)
    shop.feed([*map(order, range(20)), order(20, 101.0)], key="the last of each customer is known")
    failed: list[str] = []

    def fail_once(sink: Any, rows: Any, batch: Any) -> tables.Written:
        if sink.name not in failed:
            failed.append(sink.name)
            if len(failed) == 2:
                write(sink, rows, batch)  # it is committed, and the run does not learn that
            raise OSError("the disk is full")
        return write(sink, rows, batch)

    write = outputs.write_table
    monkeypatch.setattr("flowstone.pipeline.engine.outputs.write_table", fail_once)
    summary = shop.run(restarts=10)
    assert sorted(failed) == ["all", "files", "latest"]  # they are written at the same time
    assert summary.rows_in == 21
    orders = [*map(order, range(20)), order(20, 101.0)]
    assert rows_of(spark, shop, "all") == shop.rows() == orders
    assert rows_of(spark, shop, "files") == orders
    assert rows_of(spark, shop, "latest") == [order(number) for number in (16, 17, 18, 19)]


def compact(shop: Shop, sink: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flowstone.cli", "pipeline", "compact", str(shop.directory), "--sink", sink]
    return subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False)


def test_the_compact_command_makes_one_file_of_many(spark: SparkSession, shop: Shop) -> None:
    shop.declare(STEPS + SINKS)
    for number in range(2):
        shop.feed([order(number), order(number + 10)])
        shop.run()
    before = rows_of(spark, shop, "all")
    assert compact(shop, "all").stdout.endswith("files before, 1 now, 0 unused files deleted\n")
    assert rows_of(spark, shop, "all") == before
    refused = compact(shop, "out")
    assert (refused.returncode, "those that do: all, latest, files" in refused.stderr) == (78, True)
