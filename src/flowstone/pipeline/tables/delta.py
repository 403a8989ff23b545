"""Delta tables through the library deltalake: no jar, and the files are written by Spark's tasks.

A commit has the micro-batch's number as the transaction of its app_id, and the end offset of each topic partition as a
further transaction. The library accepts a transaction that a table has already, but refuses one that was committed
since its handle was loaded. So the number is read and the commit is made with the same handle: of two commits with one
number only one is made, whoever writes them.

Data files are in the table's directory before the commit names them; readers do not see them until then, and if that
commit never comes, `compact` deletes them once they are a week old.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.tables import columns, files, upserts
from flowstone.pipeline.tables.batches import ORDER, REPEATED, Compacted, MicroBatch, Written
from flowstone.pipeline.tables.storage import Location, location

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

    from flowstone.pipeline.model import TableSink

# How often a commit is tried again because another writer committed in between.
ATTEMPTS_MAX = 20
# Features of tables whose rules this writer follows, or has nothing to do for.
FEATURES = {"appendOnly", "invariants", "timestampNtz", "v2Checkpoint", "domainMetadata", "checkConstraints"}
FEATURES |= {"generatedColumns", "changeDataFeed", "identityColumns", "inCommitTimestamp", "vacuumProtocolCheck"}
UNREADABLE = {"columnMapping", "deletionVectors", "typeWidening", "variantType"}
CONSTRAINT = "delta.constraints."


@dataclass(frozen=True)
class DeltaSink:
    """The table of a sink. Its methods may be called by several processes at once."""

    target: TableSink
    where: Location

    @classmethod
    def of(cls, target: TableSink) -> DeltaSink:
        return cls(target, location(target.path))

    # What is there

    def load(self) -> DeltaTable | None:
        """Return a handle of the newest version, or None if there is no table."""
        return load(self.where, self.target.options)

    def check(self, schema: StructType) -> None:
        table = self.load()
        if table is not None:
            self._fit(table, schema)

    def _fit(self, table: DeltaTable, schema: StructType) -> columns.Fit:
        name = self.target.path
        _check_writable(table, name)
        there = table.metadata().partition_columns
        if self.target.partition_by and list(self.target.partition_by) != there:
            raise PipelineError(
                f"{name}: partition_by is {', '.join(self.target.partition_by)}, and the table is partitioned by "
                f"{', '.join(there) or 'nothing'}: a table's partitioning cannot be changed: declare that or write "
                "to another table"
            )
        lacking = [each for each in there if each not in schema.names]
        if lacking:
            raise PipelineError(f"{name}: the table is partitioned by {', '.join(lacking)}, which the rows do not have")
        return columns.fit(schema, spark_schema(table), name)

    # Writing

    def append(self, rows: DataFrame, batch: MicroBatch | None) -> Written:
        table = self.load()
        if table is not None and has(table, batch):
            return REPEATED
        fit = self._fit(table, rows.schema) if table is not None else columns.fit(rows.schema, rows.schema, "")
        keys = tuple(table.metadata().partition_columns) if table is not None else self.target.partition_by
        written = files.write_files(columns.stored(rows, fit, keys), self.where, keys)
        files.check_seen(written, self.where)

        def commit(table: DeltaTable) -> None:
            actions = [_add(each, keys) for each in written]
            schema = table.schema()
            table.create_write_transaction(actions, "append", schema, list(keys), commit_properties=properties(batch))

        if not self.commit(rows.schema, batch, commit):
            files.delete(written, self.where)
            return REPEATED
        return Written(sum(each.rows for each in written), len(written), False)

    def upsert(self, rows: DataFrame, batch: MicroBatch | None) -> Written:
        """Merge the rows into the table; `rows` may have ORDER."""
        table = self.load()
        if table is not None and has(table, batch):
            return REPEATED
        schema = rows.drop(ORDER).schema
        fit = self._fit(table, schema) if table is not None else columns.fit(schema, schema, "")
        latest = upserts.last_rows(upserts.with_deletions(rows, self.target), self.target.keys)
        with upserts.staged(columns.stored(latest, fit, (), (upserts.DELETED,)), self.target, self.where) as changes:

            def merge(table: DeltaTable) -> None:
                if changes.row_count:
                    _merge(table, changes, self.target.keys, properties(batch))
                else:
                    keys, stored = list(self.target.partition_by), table.schema()
                    table.create_write_transaction([], "append", stored, keys, commit_properties=properties(batch))

            if not self.commit(schema, batch, merge):
                return REPEATED
            return Written(changes.row_count, len(changes.files), False)

    def commit(self, schema: StructType, batch: MicroBatch | None, change: Callable[[DeltaTable], Any]) -> bool:
        """Make a commit to the newest version of the table, which is created and gets new columns if needed.

        Return False if the table has the micro-batch already. Raises PipelineError if others always commit first.
        """
        from deltalake.exceptions import CommitFailedError

        refusal: Exception | None = None
        for _attempt in range(ATTEMPTS_MAX):
            table = self.load() or self._create(schema)
            if has(table, batch):
                return False
            fit = self._fit(table, schema)
            if fit.added:
                self._add_columns(table, fit.added)
                continue
            try:
                change(table)
                return True
            except CommitFailedError as error:
                refusal = error
        raise PipelineError(
            f"{self.target.path}: other writers committed first, {ATTEMPTS_MAX} times in a row: {refusal}"
        )

    def _create(self, schema: StructType) -> DeltaTable:
        from deltalake import DeltaTable
        from deltalake.exceptions import CommitFailedError, DeltaError

        stored = _delta_schema(columns.nullable(schema))
        try:
            return DeltaTable.create(
                self.where.uri,
                stored,
                mode="ignore",
                partition_by=list(self.target.partition_by),
                storage_options=dict(self.target.options) or None,
            )
        except (CommitFailedError, DeltaError):
            table = self.load()  # created by another writer meanwhile
            if table is None:
                raise
            return table

    def _add_columns(self, table: DeltaTable, added: Sequence[StructField]) -> None:
        """Add columns to the table, unless another writer changes it at the same time; then the caller tries again."""
        from deltalake.exceptions import CommitFailedError
        from pyspark.sql.types import StructType

        fields = _delta_schema(columns.nullable(StructType(list(added)))).fields
        try:
            table.alter.add_columns(fields)
        except CommitFailedError:
            return

    # Offsets, maintenance

    def ends_of(self, app_id: str, partitions: Iterable[str]) -> dict[str, int]:
        table = self.load()
        if table is None:
            return {}
        found = {each: table.transaction_version(end_id(app_id, each)) for each in partitions}
        return {each: end for each, end in found.items() if end is not None}


def load(where: Location, options: Mapping[str, str], version: int | None = None) -> DeltaTable | None:
    """Return a handle of a version of the table, by default of the newest, or None if there is no table."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        return DeltaTable(where.uri, version=version, storage_options=dict(options) or None)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError, ValueError) as error:
        raise PipelineError(f"{where.uri}: the Delta table cannot be read: {error}") from error


def end_id(app_id: str, partition: str) -> str:
    """Return the transaction id that has the end offset of a topic partition."""
    return f"{app_id}:{partition}"


def has(table: DeltaTable, batch: MicroBatch | None) -> bool:
    """Return whether the handle's version of the table has the micro-batch."""
    if batch is None:
        return False
    last = table.transaction_version(batch.app_id)
    return last is not None and last >= batch.number


def properties(batch: MicroBatch | None) -> CommitProperties:
    """Return the commit's properties for a micro-batch: its number and offsets.

    The library's own retries rebase on commits of others, and refuse if one of them has a transaction of this batch.
    """
    from deltalake import CommitProperties, Transaction

    if batch is None:
        return CommitProperties()
    ends = [Transaction(end_id(batch.app_id, partition), end) for partition, end in batch.ends.items()]
    return CommitProperties(app_transactions=[Transaction(batch.app_id, batch.number), *ends])


def _add(file: files.DataFile, keys: Sequence[str]) -> Any:
    from deltalake.transaction import AddAction

    values = file.partition()
    return AddAction(file.path, file.size, {key: values[key] for key in keys}, 0, True, file.statistics)


def _merge(table: DeltaTable, changes: upserts.Changes, keys: Sequence[str], commit: CommitProperties) -> None:
    names = {each: f"`{each}`" for each in changes.columns}
    found = " AND ".join(f"target.{names[key]} = changes.{names[key]}" for key in keys)
    values = {name: f"changes.{name}" for name in names.values()}
    (
        table.merge(changes.read(), found, "changes", "target", commit_properties=commit)
        .when_matched_delete(f"changes.{upserts.DELETED}")
        .when_matched_update(values)
        .when_not_matched_insert(values, predicate=f"NOT changes.{upserts.DELETED}")
        .execute()
    )


def _check_writable(table: DeltaTable, name: str) -> None:
    """Raise PipelineError for a table with rules that only its own writer follows."""
    configuration = table.metadata().configuration
    rules = [each for each in configuration if each.startswith(CONSTRAINT)]
    rules += [each for each in ("delta.enableChangeDataFeed",) if configuration.get(each) == "true"]
    rules += [each.name for each in table.schema().fields if not each.nullable or _rules_of(each.metadata)]
    protocol = table.protocol()
    rules += sorted(set(protocol.writer_features or ()) - FEATURES)
    if rules:
        raise PipelineError(
            f"{name}: the table has rules that pipelines do not enforce: {', '.join(rules)}. Write to another table, "
            "or remove the rules"
        )


def _rules_of(metadata: Mapping[str, Any]) -> bool:
    return any(
        each.startswith(("delta.generationExpression", "delta.identity", "delta.invariants")) for each in metadata
    )


def spark_schema(table: DeltaTable) -> StructType:
    """Return the table's columns as Spark has them: Delta stores Spark's JSON."""
    from pyspark.sql.types import StructType

    return StructType.fromJson(json.loads(table.schema().to_json()))


def _delta_schema(schema: StructType) -> Any:
    from deltalake import Schema

    return Schema.from_json(schema.json())


# Reading


def read(spark: SparkSession, path: str, options: Mapping[str, str]) -> DataFrame:
    """Return the rows of the newest version, or of that which the option `version` names."""
    options = dict(options)
    version = options.pop("version", None)
    if version is not None and not version.isdecimal():
        raise PipelineError(f"{path}: version is {version!r}, and should be the number of a version of the table")
    table = load(location(path), options, None if version is None else int(version))
    if table is None:
        raise PipelineError(f"{path}: there is no Delta table")
    features = sorted(set(table.protocol().reader_features or ()) & UNREADABLE)
    if features:
        raise PipelineError(f"{path}: the table uses {', '.join(features)}, which cannot be read here")
    schema = columns.nullable(spark_schema(table))
    uris = table.file_uris()
    if not uris:
        return spark.createDataFrame([], schema)
    _check_layout(table, path)
    # Spark takes the values of partition columns from the directories' names, and their types from the schema.
    return (
        spark.read.schema(schema).option("basePath", location(path).uri).parquet(*uris).select(*_quoted(schema.names))
    )


def _check_layout(table: DeltaTable, path: str) -> None:
    """Raise PipelineError if the directories' names do not have the values of the partition columns."""
    keys = table.metadata().partition_columns
    if not keys:
        return
    for file in table.get_add_actions(flatten=True).column("path").to_pylist():
        if [part.partition("=")[0] for part in str(file).split("/")[:-1]] != keys:
            raise PipelineError(
                f"{path}: the file {file} is not in a directory that is named by {'/'.join(keys)}, as most writers do "
                "it, and cannot be read here"
            )


def _quoted(names: Iterable[str]) -> list[str]:
    return [f"`{each}`" for each in names]


def compact(target: TableSink) -> Compacted:
    """Make few large files of many small ones, and delete those that no version of the last week refers to."""
    sink = DeltaSink.of(target)
    table = sink.load()
    if table is None:
        raise PipelineError(f"{target.path}: there is no Delta table to compact")
    before = len(table.file_uris())
    table.optimize.compact()
    table = sink.load()
    assert table is not None
    deleted = table.vacuum(dry_run=False, full=True)
    return Compacted(before, len(table.file_uris()), len(deleted) + upserts.delete_old(sink.where))
