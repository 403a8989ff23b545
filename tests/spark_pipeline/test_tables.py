"""Delta tables and Parquet directories written by Spark: rows, repeats, crashes, races, schemas, other readers."""

from __future__ import annotations

import datetime
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from flowstone.pipeline import PipelineError, tables
from flowstone.pipeline.model import TableSink
from flowstone.pipeline.tables import MicroBatch, Written, delta, files, iceberg, iceberg_catalog, parquet

KINDS = ("delta", "iceberg", "parquet")
# For what the kinds share: all of them only in the long version.
SHARED = KINDS if "FLOWSTONE_SPARK_LONG" in os.environ else ("delta",)
SCHEMA = "id bigint, name string, total double"


@pytest.fixture(params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> TableSink:
    return TableSink(request.param, str(tmp_path / "table"))


def frame(spark: SparkSession, numbers: Sequence[int]) -> DataFrame:
    return spark.createDataFrame([(n, f"name {n}", n / 2) for n in numbers], SCHEMA)


def batch(number: int, app_id: str = "shop.orders/q1", **ends: int) -> MicroBatch:
    return MicroBatch(app_id, number, {f"orders-{name[1:]}": end for name, end in ends.items()})


def contents(spark: SparkSession, target: TableSink) -> list[Row]:
    return sorted(tables.read(spark, target.kind, target.path, {}).collect())


def ids(spark: SparkSession, target: TableSink) -> list[int]:
    return sorted(row.id for row in tables.read(spark, target.kind, target.path, {}).select("id").collect())


def as_stored(target: TableSink, schema: str) -> str:
    """Return a schema as a table of the kind has it: Iceberg has no integers below 32 bits."""
    if target.kind != "iceberg":
        return schema
    return schema.replace("smallint", "int").replace("tinyint", "int")


def test_rows_of_every_type_are_read_as_they_were_written(spark: SparkSession, target: TableSink) -> None:
    schema = (
        "flag boolean, b byte, s short, i int, l bigint, f float, d double, text string, bytes binary, on date, "
        "at timestamp, local timestamp_ntz, price decimal(20,4), tags array<string>, by map<string,int>, "
        "inner struct<a: int, b: array<struct<c: string>>>, `odd name.x` string"
    )
    at = datetime.datetime(2026, 11, 1, 10, 0, 0, 123456)
    rows = [
        (True, 1, 2, 3, 4, 0.5, 0.1, "grün", b"\x00\xff", at.date(), at, at, Decimal("-1.2500"), ["x", None],
         {"k": 1}, (1, [("c",)]), "o"),
        (None,) * 17,
    ]  # fmt: skip
    written = tables.write(spark.createDataFrame(rows, schema), target, None)
    assert (written.rows, written.is_repeated) == (2, False)
    found = tables.read(spark, target.kind, target.path, {})
    assert found.schema.simpleString() == as_stored(target, spark.createDataFrame([], schema).schema.simpleString())
    assert sorted(map(str, found.collect())) == sorted(map(str, spark.createDataFrame(rows, schema).collect()))


def test_a_repeated_micro_batch_is_not_written_again(spark: SparkSession, target: TableSink) -> None:
    assert tables.write(frame(spark, range(10)), target, batch(0, p0=10)) == Written(10, 2, False)
    assert tables.write(frame(spark, range(10)), target, batch(0, p0=10)) == Written(0, 0, True)
    assert tables.write(frame(spark, range(10, 20)), target, batch(1, p0=15, p1=5)).rows == 10
    assert tables.write(frame(spark, range(5)), target, batch(0, p0=10)).is_repeated
    assert ids(spark, target) == list(range(20))
    assert tables.ends_of(target, "shop.orders/q1", ["orders-0", "orders-1", "orders-2"]) == {
        "orders-0": 15,
        "orders-1": 5,
    }


@pytest.mark.parametrize("target", SHARED, indirect=True)
def test_other_queries_have_numbers_of_their_own(spark: SparkSession, target: TableSink) -> None:
    tables.write(frame(spark, [1]), target, batch(5))
    assert not tables.write(frame(spark, [2]), target, batch(0, "shop.orders/q2")).is_repeated
    assert not tables.write(frame(spark, [3]), target, None).is_repeated
    assert ids(spark, target) == [1, 2, 3]


def test_a_micro_batch_without_rows_moves_the_ends(spark: SparkSession, target: TableSink) -> None:
    assert tables.write(frame(spark, []), target, batch(0, p0=7)) == Written(0, 0, False)
    assert tables.write(frame(spark, []), target, batch(0, p0=7)).is_repeated
    assert tables.ends_of(target, "shop.orders/q1", ["orders-0"]) == {"orders-0": 7}
    assert contents(spark, target) == []


def test_partition_columns_keep_their_values_and_types(spark: SparkSession, target: TableSink) -> None:
    target = replace(target, partition_by=("day", "part", "n"))
    days = [datetime.date(2026, 11, 1), None]
    texts = ["a b", "ü/=%", "x%20y", None, "__x", "1", "a+b:c"]
    rows = [(n, days[n % 2], texts[n % 7], n % 3) for n in range(42)]
    frame = spark.createDataFrame(rows, "id bigint, day date, part string, n short")
    tables.write(frame, target, None)
    found = tables.read(spark, target.kind, target.path, {})
    assert sorted(map(tuple, found.collect()), key=lambda row: row[0]) == rows
    assert found.schema.simpleString() == as_stored(target, "struct<id:bigint,day:date,part:string,n:smallint>")
    assert found.where("part = 'ü/=%' AND n = 1").count() == sum(row[2] == "ü/=%" and row[3] == 1 for row in rows)


# Crashes, races


def test_a_crash_before_the_commit_leaves_nothing_to_see(
    spark: SparkSession, target: TableSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.write(frame(spark, [1, 2]), target, batch(0))

    def crash(*_: Any, **__: Any) -> None:
        raise RuntimeError("crash")

    with monkeypatch.context() as patch:
        patch.setattr(files, "check_seen", crash)
        with pytest.raises(RuntimeError, match="crash"):
            tables.write(frame(spark, [3, 4]), target, batch(1))
    assert ids(spark, target) == [1, 2]
    assert data_files(target) == 2 + 2  # two of them belong to nothing
    assert not tables.write(frame(spark, [3, 4]), target, batch(1)).is_repeated
    assert ids(spark, target) == [1, 2, 3, 4]


def test_a_crash_after_the_commit_is_found_by_the_repeat(
    spark: SparkSession, target: TableSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: Any, **__: Any) -> None:
        raise RuntimeError("crash")

    with monkeypatch.context() as patch:
        patch.setattr(delta, "Written", crash)
        patch.setattr(iceberg, "Written", crash)
        patch.setattr(parquet.shutil, "rmtree", crash)
        with pytest.raises(RuntimeError, match="crash"):
            tables.write(frame(spark, [1, 2]), target, batch(0))
    assert tables.write(frame(spark, [1, 2]), target, batch(0)).is_repeated
    assert ids(spark, target) == [1, 2]


def test_files_of_a_parquet_commit_are_moved_by_the_next_writer(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = TableSink("parquet", str(tmp_path / "table"))
    tables.write(frame(spark, [1]), target, batch(0))
    moved = []

    def crash_at_second(source: Path, to: Path) -> None:
        if Path(to).suffix == ".parquet":
            if moved:
                raise RuntimeError("crash")
            moved.append(to)
        Path(source).rename(to)

    with monkeypatch.context() as patch:
        patch.setattr(parquet.os, "replace", crash_at_second)
        with pytest.raises(RuntimeError, match="crash"):
            tables.write(frame(spark, [2, 3]), target, batch(1))
    assert len(ids(spark, target)) == 2
    assert tables.write(frame(spark, [2, 3]), target, batch(1)).is_repeated
    assert ids(spark, target) == [1, 2, 3]


def test_of_two_writers_of_one_micro_batch_one_is_refused(spark: SparkSession, target: TableSink) -> None:
    results: list[Written] = []
    errors: list[BaseException] = []
    barrier = threading.Barrier(2)

    def run(number: int) -> None:
        try:
            barrier.wait(60)
            results.append(tables.write(frame(spark, [2 * number, 2 * number + 1]), target, batch(number)))
        except BaseException as error:
            errors.append(error)

    for number in range(3):
        writers = [threading.Thread(target=run, args=(number,)) for _ in range(2)]
        for each in writers:
            each.start()
        for each in writers:
            each.join(120)
    assert errors == []
    assert sorted(each.is_repeated for each in results) == [False] * 3 + [True] * 3
    assert ids(spark, target) == list(range(6))


@pytest.mark.parametrize("target", SHARED, indirect=True)
def test_writers_of_different_queries_both_write(spark: SparkSession, target: TableSink) -> None:
    results: list[Written] = []
    barrier = threading.Barrier(3)

    def run(query: int) -> None:
        barrier.wait(60)
        results.extend(
            tables.write(frame(spark, [10 * query + number]), target, batch(number, f"q{query}")) for number in range(2)
        )

    writers = [threading.Thread(target=run, args=(query,)) for query in range(3)]
    for each in writers:
        each.start()
    for each in writers:
        each.join(120)
    assert [each.is_repeated for each in results] == [False] * 6
    assert ids(spark, target) == [0, 1, 10, 11, 20, 21]


def data_files(target: TableSink) -> int:
    return len(list(Path(target.path).parent.rglob("part-*.parquet*")))


# Schemas


def test_added_columns_are_merged_and_missing_ones_are_null(spark: SparkSession, target: TableSink) -> None:
    tables.write(spark.createDataFrame([(1, "a")], "id bigint, name string"), target, batch(0))
    tables.write(spark.createDataFrame([(2, 0.5)], "id int, total double"), target, batch(1))
    tables.write(spark.createDataFrame([(0.25, 3, "c")], "total float, id short, name string"), target, batch(2))
    assert contents(spark, target) == [(1, "a", None), (2, None, 0.5), (3, "c", 0.25)]


@pytest.mark.parametrize("target", SHARED, indirect=True)
@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("id string, total double", "column id is string, and bigint in the table"),
        ("ID bigint", "column ID is id in the table, in another case"),
        ("id bigint, name struct<a: int>", "column name is struct<a:int>, and string in the table"),
        ("id decimal(10,0)", "column id is decimal"),
    ],
)
def test_an_incompatible_change_is_one_clear_error(
    spark: SparkSession, target: TableSink, schema: str, message: str
) -> None:
    tables.write(frame(spark, [1]), target, batch(0))
    rows = spark.createDataFrame([], schema)
    for attempt in (lambda: tables.check(target, rows.schema), lambda: tables.write(rows, target, batch(1))):
        with pytest.raises(PipelineError, match="do not fit the table") as caught:
            attempt()
        assert message in str(caught.value)
    assert ids(spark, target) == [1]


def test_a_check_writes_nothing(spark: SparkSession, target: TableSink, tmp_path: Path) -> None:
    tables.check(target, frame(spark, []).schema)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("schema", "change", "message"),
    [
        ("id bigint, nothing void", {}, "column nothing is void"),
        ("id bigint, i interval day to second", {}, "cannot store interval"),
        ("id bigint, a array<interval year>", {}, "cannot store interval"),
        ("id bigint, Id bigint", {}, "differ only by case"),
        ("id bigint", {"partition_by": ("day",)}, "partition_by names day, and the columns are id"),
        ("id bigint", {"partition_by": ("id",)}, "names all columns"),
        ("id bigint, x double", {"partition_by": ("x",)}, "the partition column x is double"),
        ("id bigint", {"kind": "hudi"}, "there is no kind of table hudi"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    spark: SparkSession, target: TableSink, schema: str, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(PipelineError, match=message):
        tables.check(replace(target, **change), spark.createDataFrame([], schema).schema)


@pytest.mark.parametrize("target", SHARED, indirect=True)
def test_another_partitioning_than_the_tables_is_refused(spark: SparkSession, target: TableSink) -> None:
    tables.write(frame(spark, [1]), target, None)
    with pytest.raises(PipelineError, match="partition_by is name"):
        tables.check(replace(target, partition_by=("name",)), frame(spark, []).schema)


# Other readers


def test_duckdb_and_polars_read_the_same_sums(
    spark: SparkSession, target: TableSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = replace(target, partition_by=("name",))
    for number in range(3):
        rows = [(n, f"name {n % 3}", n / 2) for n in range(number * 100, number * 100 + 100)]
        tables.write(spark.createDataFrame(rows, SCHEMA), target, batch(number))
    expected = (sum(range(300)), sum(range(300)) / 2, 3)
    if target.kind == "delta":
        handle = delta.load(delta.location(target.path), {})
        assert handle is not None
        lazy, relation = polars.scan_delta(target.path), handle.to_pyarrow_dataset()
    elif target.kind == "iceberg":
        monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
        table = iceberg_catalog.place(target.path, {}).load()
        assert table is not None
        lazy, relation = polars.scan_iceberg(table), table.scan().to_arrow()
    else:
        everything = f"{target.path}/**/*.parquet"
        lazy = polars.scan_parquet(everything, hive_partitioning=True)
        relation = duckdb.read_parquet(everything, hive_partitioning=True)
    sums = lazy.select(polars.col("id").sum(), polars.col("total").sum(), polars.col("name").n_unique()).collect()
    assert sums.row(0) == expected
    assert relation is not None
    assert duckdb.sql("SELECT sum(id), sum(total), count(DISTINCT name) FROM relation").fetchall() == [expected]


def test_statistics_let_readers_skip_files(spark: SparkSession, tmp_path: Path) -> None:
    target = TableSink("delta", str(tmp_path / "table"))
    for number in range(3):
        tables.write(frame(spark, range(number * 10, number * 10 + 10)).coalesce(1), target, batch(number))
    handle = delta.load(delta.location(target.path), {})
    assert handle is not None
    assert len(handle.file_uris(file_pruning_predicate="id = 15")) == 1
    assert len(handle.file_uris(file_pruning_predicate="name = 'name 25'")) < 3
    assert len(handle.file_uris()) == 3


def test_an_older_version_of_a_delta_table_can_be_read(spark: SparkSession, tmp_path: Path) -> None:
    target = TableSink("delta", str(tmp_path / "table"))
    for number in range(2):
        tables.write(frame(spark, [number]), target, batch(number))
    assert tables.read(spark, "delta", target.path, {"version": "1"}).count() == 1
    with pytest.raises(PipelineError, match="version is 'x'"):
        tables.read(spark, "delta", target.path, {"version": "x"})


def test_reading_a_table_that_is_not_there_is_refused(spark: SparkSession, target: TableSink) -> None:
    with pytest.raises(PipelineError, match="there is no"):
        tables.read(spark, target.kind, target.path, {})


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_compaction_keeps_contents_and_transaction_ids(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    target = TableSink(kind, str(tmp_path / "table"))
    for number in range(4):
        tables.write(frame(spark, range(number * 10, number * 10 + 10)), target, batch(number, p0=number))
    compacted = tables.compact(target)
    assert (compacted.files_before, compacted.files_after) == (8, 1)
    assert ids(spark, target) == list(range(40))
    assert tables.write(frame(spark, [0]), target, batch(3)).is_repeated
    assert tables.ends_of(target, "shop.orders/q1", ["orders-0"]) == {"orders-0": 3}
    assert tables.compact(target).files_before == 1
    if kind == "delta":
        assert tables.read(spark, "delta", target.path, {"version": "2"}).count() == 20


def test_a_table_is_compacted_while_it_is_written(spark: SparkSession, tmp_path: Path) -> None:
    target = TableSink("delta", str(tmp_path / "table"), compact_every_s=0.001)
    for number in range(6):
        tables.write(frame(spark, [number]), target, batch(number))
    for thread in threading.enumerate():
        if thread.name.startswith("compaction of"):
            thread.join(60)
    assert ids(spark, target) == list(range(6))
    handle = delta.load(delta.location(target.path), {})
    assert handle is not None
    assert any(each["operation"] == "OPTIMIZE" for each in handle.history())


def test_a_parquet_directory_is_not_compacted(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="cannot be compacted"):
        tables.compact(TableSink("parquet", str(tmp_path)))
