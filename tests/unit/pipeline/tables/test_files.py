"""Statistics and names of data files."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from flowstone.pipeline.tables.files import DataFile, readable, statistics_of, write_dataset
from flowstone.pipeline.tables.storage import Location

AT = datetime.datetime(2026, 11, 1, 10, 0, 0, 123456, tzinfo=datetime.UTC)


def statistics(tmp_path: Path, **columns: pa.Array) -> dict[str, dict[str, object]]:
    pq.write_table(pa.table(columns), tmp_path / "x.parquet", row_group_size=2)
    found: dict[str, dict[str, object]] = json.loads(statistics_of(pq.read_metadata(tmp_path / "x.parquet")))
    return found


def test_exact_bounds_over_all_row_groups(tmp_path: Path) -> None:
    found = statistics(
        tmp_path,
        number=pa.array([5, None, -3, 7]),
        text=pa.array(["b", "a", "ü", "c"]),
        on=pa.array([AT.date()] * 4),
        at=pa.array([AT] * 4, pa.timestamp("us", "UTC")),
        local=pa.array([AT.replace(tzinfo=None)] * 4, pa.timestamp("us")),
    )
    assert found["numRecords"] == 4
    assert found["nullCount"] == {"number": 1, "text": 0, "on": 0, "at": 0, "local": 0}
    stamp = "2026-11-01T10:00:00.123456"
    same = {"on": "2026-11-01", "at": f"{stamp}Z", "local": stamp}
    assert found["minValues"] == {"number": -3, "text": "a", **same}
    assert found["maxValues"] == {"number": 7, "text": "ü", **same}


def test_no_bounds_where_they_would_be_inexact(tmp_path: Path) -> None:
    found = statistics(
        tmp_path,
        number=pa.array([1.0, float("nan")]),
        price=pa.array([Decimal("1.25"), Decimal("2.50")]),
        long=pa.array(["a", "x" * 65]),
        flag=pa.array([True, False]),
        inner=pa.array([{"a": 1}, None]),
    )
    assert found["minValues"] == found["maxValues"] == {}
    assert found["nullCount"] == {"number": 0, "price": 0, "long": 0, "flag": 0}


def test_a_row_group_of_nulls_does_not_hide_the_bounds_of_others(tmp_path: Path) -> None:
    found = statistics(tmp_path, number=pa.array([None, None, 1, 2]))
    assert (found["minValues"], found["maxValues"]) == ({"number": 1}, {"number": 2})


def test_letters_beyond_ascii_are_readable_in_directories_and_other_escapes_stay() -> None:
    assert readable("a=%C3%BC%2F%25/part.parquet") == "a=ü%2F%25/part.parquet"


def test_a_files_path_has_the_values_of_its_partition(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2, 3], "day": ["a b/ü", None, "x%20y"]})
    written = write_dataset(rows.to_reader(), Location(str(tmp_path)), ["day"])
    found = {each.partition()["day"]: pq.read_table(tmp_path / each.path, partitioning=None) for each in written}
    assert {day: table.to_pydict() for day, table in found.items()} == {
        "a b/ü": {"id": [1]},
        None: {"id": [2]},
        "x%20y": {"id": [3]},
    }
    assert sum(each.size for each in written) == sum((tmp_path / each.path).stat().st_size for each in written)


def test_a_path_without_partitions_has_no_values() -> None:
    assert DataFile("part.parquet", 1, 1, "{}").partition() == {}
