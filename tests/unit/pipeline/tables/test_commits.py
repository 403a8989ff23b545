"""Commits of Delta and Iceberg tables without Spark: stale handles, what compaction deletes and what it leaves."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from flowstone.pipeline import tables
from flowstone.pipeline.model import TableSink
from flowstone.pipeline.tables import delta, iceberg, iceberg_catalog
from flowstone.pipeline.tables.batches import MicroBatch

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})
WEEK_S = 7 * 86_400


def delta_commit(table: DeltaTable, batch: MicroBatch) -> None:
    table.create_write_transaction([], "append", table.schema(), [], commit_properties=delta.properties(batch))


def test_a_delta_commit_with_a_stale_handle_is_refused_for_the_same_app_id_only(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), ROWS)
    first, second, third = (DeltaTable(str(tmp_path)) for _ in range(3))
    delta_commit(first, MicroBatch("q", 0, {"t-0": 5}))
    assert not delta.has(second, MicroBatch("q", 0, {}))
    with pytest.raises(CommitFailedError):
        delta_commit(second, MicroBatch("q", 0, {"t-0": 5}))
    delta_commit(third, MicroBatch("other", 0, {"t-0": 7}))
    newest = DeltaTable(str(tmp_path))
    assert [delta.has(newest, MicroBatch("q", number, {})) for number in (0, 1)] == [True, False]


@pytest.fixture
def place(tmp_path: Path) -> iceberg_catalog.Place:
    place = iceberg_catalog.place(str(tmp_path / "shop.orders"), {})
    place.create(ROWS.schema, (), iceberg.PROPERTIES)
    return place


def load(place: iceberg_catalog.Place) -> Table:
    table = place.load()
    assert table is not None
    return table


def iceberg_commit(table: Table, batch: MicroBatch | None, name: str) -> None:
    file = Path(iceberg.data_directory(table).uri) / name
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(ROWS, file)
    iceberg.commit_once(table, batch, lambda change: change.add_files([str(file)], check_duplicate_files=False))


def test_an_iceberg_commit_with_a_stale_handle_is_refused(place: iceberg_catalog.Place) -> None:
    first, second = load(place), load(place)
    iceberg_commit(first, MicroBatch("q", 0, {"t-0": 5}), "a.parquet")
    assert not iceberg.has(second, MicroBatch("q", 0, {}))
    with pytest.raises(CommitFailedException):
        iceberg_commit(second, MicroBatch("q", 0, {"t-0": 5}), "b.parquet")
    newest = load(place)
    assert newest.scan().to_arrow().num_rows == 2
    assert [iceberg.has(newest, MicroBatch("q", number, {})) for number in (0, 1)] == [True, False]
    assert iceberg.RETRIES not in newest.properties  # other writers keep their own


def test_an_iceberg_commit_without_rows_is_refused_with_a_stale_handle_too(place: iceberg_catalog.Place) -> None:
    first, second = load(place), load(place)
    for table, is_refused in ((first, False), (second, True)):
        try:
            iceberg.commit_once(
                table, MicroBatch("q", 0, {}), lambda change: change.add_files([], check_duplicate_files=False)
            )
        except CommitFailedException:
            assert is_refused
        else:
            assert not is_refused


def test_end_offsets_of_partitions_without_new_records_stay(place: iceberg_catalog.Place, tmp_path: Path) -> None:
    iceberg_commit(load(place), MicroBatch("q", 0, {"t-0": 5, "t-1": 7}), "a.parquet")
    iceberg_commit(load(place), MicroBatch("q", 1, {"t-0": 6}), "b.parquet")
    target = TableSink("iceberg", str(tmp_path / "shop.orders"))
    assert tables.ends_of(target, "q", ["t-0", "t-1", "t-2"]) == {"t-0": 6, "t-1": 7}


def orphans(directory: Path) -> list[Path]:
    """Make a file that no commit names and that is old, and one that is new."""
    made = [directory / "old.parquet", directory / "new.parquet"]
    for each in made:
        pq.write_table(ROWS, each)
    os.utime(made[0], (time.time() - WEEK_S - 60,) * 2)
    return made


def test_compaction_deletes_old_files_that_no_delta_commit_names(tmp_path: Path) -> None:
    for _ in range(2):
        write_deltalake(str(tmp_path), ROWS, mode="append")
    old, new = orphans(tmp_path)
    assert tables.compact(TableSink("delta", str(tmp_path))) == tables.Compacted(2, 1, 1)
    assert (old.exists(), new.exists()) == (False, True)
    assert DeltaTable(str(tmp_path)).to_pyarrow_table().num_rows == 4


def test_compaction_deletes_old_files_that_no_iceberg_snapshot_names(
    place: iceberg_catalog.Place, tmp_path: Path
) -> None:
    for name in ("a.parquet", "b.parquet"):
        iceberg_commit(load(place), None, name)
    old, new = orphans(Path(iceberg.data_directory(load(place)).uri))
    os.utime(old.with_name("a.parquet"), (time.time() - WEEK_S - 60,) * 2)  # old, but a snapshot names it
    assert tables.compact(TableSink("iceberg", str(tmp_path / "shop.orders"))) == tables.Compacted(2, 1, 1)
    assert (old.exists(), new.exists(), old.with_name("a.parquet").exists()) == (False, True, True)
    assert load(place).scan().to_arrow().num_rows == 4
