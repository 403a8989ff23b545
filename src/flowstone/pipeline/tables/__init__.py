"""Lake tables without a jar: Delta, Iceberg and Parquet, written exactly once from Spark.

Spark's tasks write Parquet files and the driver commits them together with the number of the micro-batch, so that a
micro-batch that is run again is not written again. The packages of a format are imported only when it is used.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.tables.batches import ORDER, Compacted, MicroBatch, Written
from flowstone.pipeline.tables.schedule import Schedule

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from flowstone.pipeline.model import TableSink

__all__ = ["ORDER", "Compacted", "MicroBatch", "Written", "check", "compact", "ends_of", "read", "write"]

# The kinds of tables, with the package that each needs and the extra of Flowstone that installs it.
PACKAGES = {"delta": ("deltalake", "pipeline"), "iceberg": ("pyiceberg", "iceberg"), "parquet": ("pyarrow", "pipeline")}


def write(rows: DataFrame, target: TableSink, batch: MicroBatch | None) -> Written:
    """Write the rows once: a micro-batch that the table has already is not written again.

    Without a micro-batch the rows are written each time. With `keys` rows replace those that have the same keys; of
    several such rows the last by the column ORDER is written. Raises PipelineError if the rows do not fit the table.
    """
    _check_declared(target, _without_order(rows.schema))
    written = _write(rows, target, batch)
    _schedule.written(target)
    return written


def _write(rows: DataFrame, target: TableSink, batch: MicroBatch | None) -> Written:
    if target.kind == "delta":
        from flowstone.pipeline.tables.delta import DeltaSink

        sink = DeltaSink.of(target)
        return sink.upsert(rows, batch) if target.keys else sink.append(rows.drop(ORDER), batch)
    if target.kind == "iceberg":
        from flowstone.pipeline.tables import iceberg_rewrites
        from flowstone.pipeline.tables.iceberg import IcebergSink

        table = IcebergSink.of(target)
        return iceberg_rewrites.upsert(table, rows, batch) if target.keys else table.append(rows.drop(ORDER), batch)
    from flowstone.pipeline.tables.parquet import ParquetSink

    return ParquetSink.of(target).append(rows.drop(ORDER), batch)


def read(spark: SparkSession, kind: str, path: str, options: Mapping[str, str]) -> DataFrame:
    """Return the rows of a table as it is now."""
    _check_kind(kind, path)
    if kind == "delta":
        from flowstone.pipeline.tables import delta

        return delta.read(spark, path, options)
    if kind == "iceberg":
        from flowstone.pipeline.tables import iceberg

        return iceberg.read(spark, path, options)
    from flowstone.pipeline.tables import parquet

    return parquet.read(spark, path, options)


def check(target: TableSink, schema: StructType) -> None:
    """Raise PipelineError if rows of the schema cannot be written to the table. Writes nothing."""
    schema = _without_order(schema)
    _check_declared(target, schema)
    if target.delete_when:
        from flowstone.pipeline.tables import upserts

        upserts.check_condition(schema, target)
    if target.kind == "delta":
        from flowstone.pipeline.tables.delta import DeltaSink

        DeltaSink.of(target).check(schema)
    elif target.kind == "iceberg":
        from flowstone.pipeline.tables.iceberg import IcebergSink

        IcebergSink.of(target).check(schema)
    else:
        from flowstone.pipeline.tables.parquet import ParquetSink

        ParquetSink.of(target).check(schema)


def ends_of(target: TableSink, app_id: str, partitions: Iterable[str]) -> dict[str, int]:
    """Return where the table's rows of an app_id end in topic partitions ("topic-partition"), those it has."""
    _check_kind(target.kind, target.path)
    if target.kind == "delta":
        from flowstone.pipeline.tables.delta import DeltaSink

        return DeltaSink.of(target).ends_of(app_id, partitions)
    if target.kind == "iceberg":
        from flowstone.pipeline.tables.iceberg import IcebergSink

        return IcebergSink.of(target).ends_of(app_id, partitions)
    from flowstone.pipeline.tables.parquet import ParquetSink

    ends = ParquetSink.of(target).ends_of(app_id)
    return {each: ends[each] for each in partitions if each in ends}


def compact(target: TableSink) -> Compacted:
    """Make few large files of a table's many small ones. Readers and writers are not disturbed."""
    _check_kind(target.kind, target.path)
    if target.kind == "delta":
        from flowstone.pipeline.tables import delta

        return delta.compact(target)
    if target.kind == "iceberg":
        from flowstone.pipeline.tables import iceberg_rewrites

        return iceberg_rewrites.compact(target)
    raise PipelineError(
        f"{target.path}: a Parquet directory cannot be compacted, because its readers would see rows twice or not at "
        "all; use a Delta table"
    )


_schedule = Schedule(compact)


def _check_declared(target: TableSink, schema: StructType) -> None:
    from flowstone.pipeline.tables import columns

    _check_kind(target.kind, target.path)
    columns.check_types(schema, target.kind, target.path)
    columns.check_named(schema, target.keys, target.partition_by, target.path)
    if target.delete_when and not target.keys:
        raise PipelineError(f"{target.path}: delete_when needs keys, by which the rows to delete are found")


def _check_kind(kind: str, path: str) -> None:
    if kind not in PACKAGES:
        raise PipelineError(f"{path}: there is no kind of table {kind}; the kinds are {', '.join(PACKAGES)}")
    package, extra = PACKAGES[kind]
    if importlib.util.find_spec(package) is None:
        raise PipelineError(f"{path}: {kind} tables need the package {package}: pip install 'flowstone[{extra}]'")


def _without_order(schema: StructType) -> StructType:
    from pyspark.sql.types import StructType

    return StructType([each for each in schema.fields if each.name != ORDER])
