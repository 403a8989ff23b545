"""Iceberg tables through the library pyiceberg: no jar, and the files are written by Spark's tasks.

The number of an app_id's last micro-batch, and where it ends, is a property of the table that is set in the commit that
adds the rows. Each commit makes a snapshot, also one without rows, and is refused if the table has another snapshot
since its handle was loaded: the library's own retries, which would not read the number again, are turned off. So the
number is read and the commit is made with the same handle, and of two commits with one number only one is made.

Data files are in the table's directory before the commit names them; readers do not see them until then, and if that
commit never comes, `compact` deletes them once they are a week old.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.tables import columns, files
from flowstone.pipeline.tables.batches import REPEATED, MicroBatch, Written
from flowstone.pipeline.tables.iceberg_catalog import Place, place
from flowstone.pipeline.tables.storage import Location, location

if TYPE_CHECKING:
    from pyiceberg.table import Table, Transaction
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from flowstone.pipeline.model import TableSink

ATTEMPTS_MAX = 20
RETRIES = "commit.retry.num-retries"
# Of tables that are created here. Otherwise each commit adds a manifest that every reader reads, and a metadata file.
PROPERTIES = {
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
# Copies of the partition columns, by which tasks split their rows; files have the columns themselves, too.
SPLIT_BY = "_partition_"


@dataclass(frozen=True)
class IcebergSink:
    """The table of a sink. Its methods may be called by several processes at once."""

    target: TableSink
    place: Place

    @classmethod
    def of(cls, target: TableSink) -> IcebergSink:
        return cls(target, place(target.path, target.options))

    def check(self, schema: StructType) -> None:
        table = self.place.load()
        if table is not None:
            self.fit(table, schema)

    def fit(self, table: Table, schema: StructType) -> columns.Fit:
        """Return how rows fit into the table. Raises PipelineError if they do not."""
        name = self.target.path
        there = partition_columns(table, name)
        if self.target.partition_by and self.target.partition_by != there:
            raise PipelineError(
                f"{name}: partition_by is {', '.join(self.target.partition_by)}, and the table is partitioned by "
                f"{', '.join(there) or 'nothing'}: declare that, or write to another table"
            )
        lacking = [each for each in there if each not in schema.names]
        if lacking:
            raise PipelineError(f"{name}: the table is partitioned by {', '.join(lacking)}, which the rows do not have")
        required = [each.name for each in table.schema().fields if each.required]
        if required:
            raise PipelineError(
                f"{name}: the columns {', '.join(required)} are required in the table, and pipelines do not enforce "
                "that: write to another table, or make them optional"
            )
        return columns.fit(as_stored(schema), spark_schema(table), name)

    # Writing

    def append(self, rows: DataFrame, batch: MicroBatch | None) -> Written:
        table = self.newest(rows.schema)
        if has(table, batch):
            return REPEATED
        written = self.write_files(table, columns.stored(rows, self.fit(table, rows.schema), ()))

        def commit(change: Transaction) -> None:
            change.add_files([_uri(table, each) for each in written], check_duplicate_files=False)

        if not self.commit(rows.schema, batch, commit):
            files.delete(written, data_directory(table))
            return REPEATED
        return Written(sum(each.rows for each in written), len(written), False)

    def write_files(self, table: Table, rows: DataFrame) -> list[files.DataFile]:
        """Write rows, which have the table's types, to files that do not belong to the table yet."""
        from pyspark.sql import functions as F  # noqa: N812 - its usual name

        keys = partition_columns(table, self.target.path)
        split = [F.col(f"`{key}`").cast("string").alias(f"{SPLIT_BY}{number}") for number, key in enumerate(keys)]
        where = data_directory(table)
        written = files.write_files(rows.select("*", *split), where, [f"{SPLIT_BY}{n}" for n in range(len(keys))])
        files.check_seen(written, where)
        return written

    def commit(self, schema: StructType, batch: MicroBatch | None, change: Callable[[Transaction], None]) -> bool:
        """Make a commit to the newest version of the table. Return False if the table has the micro-batch already.

        Raises PipelineError if others always commit first.
        """
        from pyiceberg.exceptions import CommitFailedException

        refusal: Exception | None = None
        for _attempt in range(ATTEMPTS_MAX):
            table = self.newest(schema)
            if has(table, batch):
                return False
            try:
                commit_once(table, batch, change)
                return True
            except CommitFailedException as error:
                refusal = error
        raise PipelineError(
            f"{self.target.path}: other writers committed first, {ATTEMPTS_MAX} times in a row: {refusal}"
        )

    def newest(self, schema: StructType) -> Table:
        """Return a handle of the newest version, which has all columns of the schema."""
        from pyiceberg.exceptions import CommitFailedException
        from pyspark.sql.types import StructType

        for _attempt in range(ATTEMPTS_MAX):
            table = self.place.load()
            if table is None:
                columns.fit(as_stored(schema), as_stored(schema), self.target.path)
                table = self.place.create(_arrow(as_stored(schema)), self.target.partition_by, PROPERTIES)
            fit = self.fit(table, schema)
            if not fit.added:
                return table
            try:
                with table.update_schema() as update:
                    update.union_by_name(_arrow(StructType(list(fit.added))))
            except CommitFailedException:
                continue
        raise PipelineError(f"{self.target.path}: other writers change the table's columns all the time")

    def ends_of(self, app_id: str, partitions: Iterable[str]) -> dict[str, int]:
        table = self.place.load()
        ends = {} if table is None else _marker(table, app_id).get("ends", {})
        return {each: ends[each] for each in partitions if each in ends}


def commit_once(table: Table, batch: MicroBatch | None, change: Callable[[Transaction], None]) -> None:
    """Commit a change and the micro-batch's number. Raises CommitFailedException if the handle is not the newest."""
    # In this handle's memory only: the property of the table is the business of other writers.
    table.metadata.properties[RETRIES] = "0"
    with table.transaction() as transaction:
        if batch is not None:
            ends = {**_marker(table, batch.app_id).get("ends", {}), **batch.ends}
            marker = {"app_id": batch.app_id, "number": batch.number, "ends": ends}
            transaction.set_properties({_property(batch.app_id): json.dumps(marker)})
        change(transaction)


def has(table: Table, batch: MicroBatch | None) -> bool:
    """Return whether the handle's version of the table has the micro-batch."""
    return batch is not None and int(_marker(table, batch.app_id).get("number", -1)) >= batch.number


def _marker(table: Table, app_id: str) -> dict[str, Any]:
    marker: dict[str, Any] = json.loads(table.properties.get(_property(app_id), "{}"))
    return marker


def _property(app_id: str) -> str:
    return f"flowstone.app.{hashlib.sha256(app_id.encode()).hexdigest()[:32]}"


def data_directory(table: Table) -> Location:
    return location(f"{table.location()}/data")


def _uri(table: Table, file: files.DataFile) -> str:
    return f"{table.location()}/data/{file.path}"


# Columns


def partition_columns(table: Table, name: str) -> tuple[str, ...]:
    """Return the columns by whose values the table is partitioned. Raises PipelineError for other partitionings."""
    from pyiceberg.transforms import IdentityTransform

    found = []
    for field in table.spec().fields:
        if not isinstance(field.transform, IdentityTransform):
            raise PipelineError(
                f"{name}: the table is partitioned by {field.transform} of a column, and pipelines write only tables "
                "that are partitioned by values of columns"
            )
        found.append(table.schema().find_column_name(field.source_id) or "")
    return tuple(found)


def as_stored(schema: StructType) -> StructType:
    """Return the schema with the types that Iceberg has for those of Spark."""
    from pyspark.sql.types import ByteType, IntegerType, ShortType

    return columns.replaced(columns.nullable(schema), {ByteType(): IntegerType(), ShortType(): IntegerType()})


def spark_schema(table: Table) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return columns.nullable(from_arrow_schema(table.schema().as_arrow(), prefer_timestamp_ntz=True))


def _arrow(schema: StructType) -> Any:
    from pyspark_flowstone.versions import arrow_schema

    return arrow_schema(schema)


# Reading


def read(spark: SparkSession, path: str, options: Mapping[str, str]) -> DataFrame:
    """Return the rows of the newest snapshot, or of that which the option `snapshot` names by its id."""
    options = dict(options)
    snapshot = options.pop("snapshot", None)
    if snapshot is not None and not snapshot.isdecimal():
        raise PipelineError(f"{path}: snapshot is {snapshot!r}, and should be the id of a snapshot of the table")
    table = place(path, options).load()
    if table is None:
        raise PipelineError(f"{path}: there is no Iceberg table")
    return read_files(spark, table, path, None if snapshot is None else int(snapshot))


def read_files(spark: SparkSession, table: Table, path: str, snapshot: int | None = None) -> DataFrame:
    check_readable(table, path)
    try:
        tasks = list(table.scan(snapshot_id=snapshot).plan_files())
    except ValueError as error:
        raise PipelineError(f"{path}: {error}") from error
    schema = spark_schema(table)
    if any(task.delete_files for task in tasks):
        raise PipelineError(
            f"{path}: the table has files of deleted rows, which cannot be read here; compact it elsewhere"
        )
    if not tasks:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*[task.file.file_path for task in tasks])


def check_readable(table: Table, path: str) -> None:
    """Raise PipelineError if files may have columns under other names: Spark finds them by name."""
    names: dict[int, str] = {}
    for schema in table.metadata.schemas:
        for field in schema.fields:
            if names.setdefault(field.field_id, field.name) != field.name:
                raise PipelineError(
                    f"{path}: the column {field.name} was {names[field.field_id]} before, and a table with renamed "
                    "columns cannot be read here"
                )


def existing(table: Table) -> Sequence[Any]:
    """Return the data files of the newest snapshot, as pyiceberg has them."""
    return [task.file for task in table.scan().plan_files()]
