"""Columns of tables: which types a format stores, and how rows fit into a table that exists.

Added columns are merged into the table. Columns that rows lack are NULL. A number may become a wider one of the table.
Everything else is an incompatible change, and an error that says what differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowstone.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

SIMPLE = ("boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary", "date", "timestamp")
STORED = {
    "delta": (*SIMPLE, "timestamp_ntz", "decimal", "array", "map", "struct"),
    "parquet": (*SIMPLE, "timestamp_ntz", "decimal", "array", "map", "struct"),
    "iceberg": (*SIMPLE, "timestamp_ntz", "decimal", "array", "map", "struct"),
}
PARTITIONED_BY = ("boolean", "byte", "short", "integer", "long", "string", "date")
# A type of rows -> types of a table's columns that hold all of its values.
WIDER = {
    "byte": ("short", "integer", "long", "double"),
    "short": ("integer", "long", "double"),
    "integer": ("long", "double"),
    "float": ("double",),
}


@dataclass(frozen=True)
class Fit:
    """The result of fitting rows into a table: the columns to add, and all columns of the files with their types."""

    added: tuple[StructField, ...]
    written: tuple[StructField, ...]


def check_types(schema: StructType, kind: str, where: str) -> None:
    """Raise PipelineError for a column that tables of the kind cannot store, or for names that differ by case only."""
    seen: dict[str, str] = {}
    if not schema.fields:
        raise PipelineError(f"{where}: the rows have no columns, and a table needs at least one")
    for column in schema.fields:
        other = seen.setdefault(column.name.lower(), column.name)
        if other is not seen[column.name.lower()] or list(schema.names).count(column.name) > 1:
            raise PipelineError(f"{where}: there are two columns {column.name}: rename one")
        if other != column.name:
            raise PipelineError(f"{where}: the columns {other} and {column.name} differ only by case: rename one")
        wrong = _unstored(column.dataType, STORED[kind])
        if wrong is not None:
            raise PipelineError(
                f"{where}: column {column.name} is {column.dataType.simpleString()}, and {kind} tables cannot store "
                f"{wrong}: cast the column or leave it out"
            )


def _unstored(kind: DataType, stored: Sequence[str]) -> str | None:
    """Return the first type inside this one that is not stored."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if kind.typeName().split("(")[0] not in stored:
        return kind.simpleString()
    inner: list[DataType] = []
    if isinstance(kind, ArrayType):
        inner = [kind.elementType]
    elif isinstance(kind, MapType):
        inner = [kind.keyType, kind.valueType]
    elif isinstance(kind, StructType):
        if not kind.fields:
            return "a struct without fields"
        inner = [each.dataType for each in kind.fields]
    return next((wrong for each in inner if (wrong := _unstored(each, stored)) is not None), None)


def check_named(schema: StructType, keys: Sequence[str], partition_by: Sequence[str], where: str) -> None:
    """Raise PipelineError for keys and partition columns that cannot be."""
    known = {each.name: each for each in schema.fields}
    for option, names in (("keys", keys), ("partition_by", partition_by)):
        for name in names:
            if name not in known:
                raise PipelineError(f"{where}: {option} names {name}, and the columns are {', '.join(known)}")
        if len(set(names)) < len(names):
            raise PipelineError(f"{where}: {option} names a column twice: {', '.join(names)}")
    for name in keys:
        kind = known[name].dataType.typeName()
        if kind in ("array", "map", "struct", "float", "double"):
            raise PipelineError(f"{where}: the key {name} is {kind}, which cannot be compared reliably: cast it")
    for name in partition_by:
        kind = known[name].dataType.typeName()
        if kind not in PARTITIONED_BY:
            raise PipelineError(
                f"{where}: the partition column {name} is {kind}, and it can be {', '.join(PARTITIONED_BY)}: "
                "add a column with one of those types, such as the date of a timestamp"
            )
    if partition_by and len(partition_by) == len(known):
        raise PipelineError(f"{where}: partition_by names all columns, and a table needs one that is not")


def fit(rows: StructType, table: StructType, where: str) -> Fit:
    """Return how the rows fit into the table. Raises PipelineError with all changes that are incompatible."""
    by_name = {each.name: each for each in table.fields}
    by_case = {each.name.lower(): each.name for each in table.fields}
    added: list[StructField] = []
    written: list[StructField] = []
    wrong: list[str] = []
    for column in rows.fields:
        there = by_name.get(column.name)
        if there is not None:
            written.append(there)
            if not holds(there.dataType, column.dataType):
                wrong.append(
                    f"column {column.name} is {column.dataType.simpleString()}, and "
                    f"{there.dataType.simpleString()} in the table"
                )
        elif column.name.lower() in by_case:
            wrong.append(f"column {column.name} is {by_case[column.name.lower()]} in the table, in another case")
        else:
            added.append(column)
            written.append(column)
    if wrong:
        raise PipelineError(
            f"{where}: the rows do not fit the table: {'; '.join(wrong)}. Cast or rename the columns in a step, or "
            "write to another table"
        )
    return Fit(tuple(added), tuple(written))


def stored(rows: DataFrame, fit: Fit, partition_by: Sequence[str], also: Sequence[str] = ()) -> DataFrame:
    """Return the rows with the types of the table; partition columns as text, for the names of directories.

    `also` names columns that are not the table's and that stay as they are.

    Empty text is NULL as the value of a partition column, as in every table format that has directories.
    """
    from pyspark.sql import functions as F  # noqa: N812 - its usual name

    selected = []
    for column in fit.written:
        value = F.col(f"`{column.name}`").cast(column.dataType)
        if column.name in partition_by:
            value = F.nullif(value.cast("string"), F.lit(""))
        selected.append(value.alias(column.name))
    return rows.select(*selected, *also)


def holds(table: DataType, rows: DataType) -> bool:
    """Return whether a column of the table's type holds every value of the rows' type."""
    from pyspark.sql.types import DecimalType

    table, rows = _replaced(table, {}), _replaced(rows, {})
    if table == rows or table.typeName() in WIDER.get(rows.typeName(), ()):
        return True
    if isinstance(table, DecimalType) and isinstance(rows, DecimalType):
        return table.scale >= rows.scale and table.precision - table.scale >= rows.precision - rows.scale
    return False


def nullable(schema: StructType) -> StructType:
    """Return the schema with everything nullable and without comments, as tables have it."""
    return replaced(schema, {})


def replaced(schema: StructType, types: Mapping[DataType, DataType]) -> StructType:
    """Return the schema with other types for some, also inside of others."""
    from pyspark.sql.types import StructType

    kind = _replaced(schema, types)
    assert isinstance(kind, StructType)
    return kind


def _replaced(kind: DataType, types: Mapping[DataType, DataType]) -> DataType:
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(kind, StructType):
        return StructType([StructField(each.name, _replaced(each.dataType, types)) for each in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_replaced(kind.elementType, types))
    if isinstance(kind, MapType):
        return MapType(_replaced(kind.keyType, types), _replaced(kind.valueType, types))
    return types.get(kind, kind)
