"""Rewrites of an Iceberg table's files: upserts and compaction, as one overwrite of the files that they concern.

pyiceberg's own upsert and overwrite hold all rows of the table in the driver's memory. Here Spark finds the files that
have one of the keys and writes their rows anew, merged with the changes. A commit of another writer in between has the
whole rewrite begin again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.tables import columns, files, upserts
from flowstone.pipeline.tables.batches import ORDER, REPEATED, Compacted, MicroBatch, Written
from flowstone.pipeline.tables.iceberg import (
    ATTEMPTS_MAX,
    IcebergSink,
    check_readable,
    commit_once,
    data_directory,
    existing,
    has,
    spark_schema,
)
from flowstone.pipeline.tables.storage import FILE_SCHEME

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

    from flowstone.pipeline.model import TableSink

# Files below this size are compacted with their neighbours of the same partition, to files of about this size.
FILE_BYTES_MIN = 64 << 20
# How long files and snapshots are kept for readers and writers that may still need them.
KEPT = timedelta(days=7)
_CHANGED = "_changed"
_FILE = "_file"


def upsert(sink: IcebergSink, rows: DataFrame, batch: MicroBatch | None) -> Written:
    """Merge the rows into the table; `rows` may have ORDER."""
    from pyiceberg.exceptions import CommitFailedException

    schema = rows.drop(ORDER).schema
    table = sink.newest(schema)
    if has(table, batch):
        return REPEATED
    check_readable(table, sink.target.path)
    latest = upserts.last_rows(upserts.with_deletions(rows, sink.target), sink.target.keys)
    stored = columns.stored(latest, sink.fit(table, schema), (), (upserts.DELETED,))
    refusal: Exception | None = None
    with upserts.staged(stored, sink.target, data_directory(table)) as changes:
        for _attempt in range(ATTEMPTS_MAX):
            table = sink.newest(schema)
            if has(table, batch):
                return REPEATED
            try:
                _rewrite(sink, table, changes, batch, rows.sparkSession)
                return Written(changes.row_count, len(changes.files), False)
            except CommitFailedException as error:
                refusal = error
    raise PipelineError(f"{sink.target.path}: other writers committed first, {ATTEMPTS_MAX} times in a row: {refusal}")


def _rewrite(
    sink: IcebergSink, table: Table, changes: upserts.Changes, batch: MicroBatch | None, spark: SparkSession
) -> None:
    from pyiceberg.exceptions import CommitFailedException

    if not changes.row_count:
        commit_once(table, batch, lambda transaction: transaction.add_files([], check_duplicate_files=False))
        return
    changed = spark.read.parquet(*changes.paths())
    replaced = _files_with_keys(spark, table, changed, sink.target)
    written = sink.write_files(table, _merged(spark, table, replaced, changed, changes.columns, sink.target.keys))
    try:
        commit_once(table, batch, lambda transaction: _overwrite(transaction, table, replaced, written))
    except CommitFailedException:
        files.delete(written, data_directory(table))
        raise


def _files_with_keys(spark: SparkSession, table: Table, changed: DataFrame, target: TableSink) -> list[Any]:
    """Return the files of the table that have a row with one of the changed keys."""
    there = {_local(each.file_path): each for each in existing(table)}
    if not there:
        return []
    keys = [f"`{key}`" for key in target.keys]
    rows = spark.read.schema(spark_schema(table)).parquet(*[each.file_path for each in there.values()])
    found = rows.selectExpr(*keys, f"_metadata.file_path AS {_FILE}").join(
        changed.select(*keys), list(target.keys), "semi"
    )
    return [there[_local(unquote(row[0]))] for row in found.select(_FILE).distinct().collect()]


def _local(path: str) -> str:
    """Return a path of this machine without its scheme, of which Spark and Iceberg have different forms."""
    if path.startswith(FILE_SCHEME):
        return path.removeprefix(FILE_SCHEME)
    return path.removeprefix("file:")


def _merged(
    spark: SparkSession,
    table: Table,
    replaced: Sequence[Any],
    changed: DataFrame,
    names: Sequence[str],
    keys: Sequence[str],
) -> DataFrame:
    """Return the rows of the replaced files and the changes as one: changed columns of changed rows are new."""
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    schema = spark_schema(table)
    paths = [each.file_path for each in replaced]
    old = spark.read.schema(schema).parquet(*paths) if paths else spark.createDataFrame([], schema)
    new = changed.withColumn(_CHANGED, F.lit(True)).alias("new")
    same = [F.col(f"old.`{key}`") == F.col(f"new.`{key}`") for key in keys]
    condition = same[0]
    for each in same[1:]:
        condition = condition & each
    both = old.alias("old").join(new, condition, "full_outer")
    is_changed = F.col(f"new.{_CHANGED}").isNotNull()
    kept = both.where(~is_changed | ~F.col(f"new.{upserts.DELETED}"))
    values = [
        F.when(is_changed, F.col(f"new.`{name}`")).otherwise(F.col(f"old.`{name}`"))
        if name in names
        else F.col(f"old.`{name}`")
        for name in schema.names
    ]
    return kept.select(*[value.alias(name) for value, name in zip(values, schema.names, strict=True)])


def _overwrite(transaction: Any, table: Table, replaced: Sequence[Any], written: Sequence[files.DataFile]) -> None:
    from pyiceberg.io.pyarrow import parquet_file_to_data_file

    _name_columns(transaction)
    with transaction.update_snapshot().overwrite() as snapshot:
        for each in replaced:
            snapshot.delete_data_file(each)
        for file in written:
            uri = f"{table.location()}/data/{file.path}"
            snapshot.append_data_file(parquet_file_to_data_file(table.io, transaction.table_metadata, uri))


def _name_columns(transaction: Any) -> None:
    """Set the name mapping, so that readers find columns by name: added files have no column ids."""
    if transaction.table_metadata.name_mapping() is None:
        mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
        transaction.set_properties({"schema.name-mapping.default": mapping})


# Compaction


def compact(target: TableSink) -> Compacted:
    """Make few large files of small ones, expire snapshots older than a week, and delete what nothing refers to."""
    from pyiceberg.exceptions import CommitFailedException

    sink = IcebergSink.of(target)
    table = sink.place.load()
    if table is None:
        raise PipelineError(f"{target.path}: there is no Iceberg table to compact")
    before = len(existing(table))
    for _attempt in range(ATTEMPTS_MAX):
        try:
            _compact_files(table, target.path)
            break
        except CommitFailedException:
            table = sink.place.load()
            assert table is not None
    table = sink.place.load()
    assert table is not None
    table.maintenance.expire_snapshots().older_than(datetime.now(UTC) - KEPT).commit()
    table.refresh()
    deleted = _delete_orphans(table) + upserts.delete_old(data_directory(table))
    return Compacted(before, len(existing(table)), deleted)


def _compact_files(table: Table, path: str) -> None:
    from pyarrow import dataset
    from pyiceberg.exceptions import CommitFailedException

    check_readable(table, path)
    if any(task.delete_files for task in table.scan().plan_files()):
        raise PipelineError(f"{path}: the table has files of deleted rows, which cannot be rewritten here")
    small: Mapping[Any, list[Any]] = defaultdict(list)
    for each in existing(table):
        if each.file_size_in_bytes < FILE_BYTES_MIN:
            small[tuple(each.partition)].append(each)
    groups = [group for group in small.values() if len(group) > 1]
    if not groups:
        return
    where, schema = data_directory(table), table.schema().as_arrow()
    system, _base = where.open()
    written: list[files.DataFile] = []
    for group in groups:
        paths = [_local(each.file_path) if where.is_local else each.file_path.partition("://")[2] for each in group]
        rows = dataset.dataset(paths, schema=schema, format="parquet", filesystem=system).scanner().to_reader()
        size = sum(each.file_size_in_bytes for each in group)
        row_count = sum(each.record_count for each in group)
        # A file of FILE_BYTES_MIN would be compacted again and again if it came out a little smaller.
        rows_max = -(-row_count * 2 * FILE_BYTES_MIN // max(size, 1))
        written += files.write_dataset(rows, where, file_rows_max=max(rows_max, files.ROW_GROUP_ROWS_MAX))
    replaced = [each for group in groups for each in group]
    try:
        commit_once(table, None, lambda transaction: _overwrite(transaction, table, replaced, written))
    except CommitFailedException:
        files.delete(written, where)
        raise


def _delete_orphans(table: Table) -> int:
    """Delete data files that no snapshot refers to and that no writer is about to commit."""
    from pyarrow import fs

    system, base = data_directory(table).open()
    used = {_local(path) for path in table.inspect.all_files().column("file_path").to_pylist()}
    oldest = datetime.now(UTC) - KEPT
    deleted = 0
    for file in system.get_file_info(fs.FileSelector(base, recursive=True, allow_not_found=True)):
        if file.type == fs.FileType.File and file.mtime < oldest and file.path not in used:
            system.delete_file(file.path)
            deleted += 1
    return deleted
