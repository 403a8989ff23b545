"""The columns of the source as Spark types, equal to the Kafka connector's."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_flowstone.table_options import without_options
from pyspark_flowstone.values import OptionError

_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}


def spark_schema(columns: Sequence[str]) -> StructType:
    return StructType([StructField(name, _TYPES[name]) for name in columns])


def check_schema(given: StructType, columns: Sequence[str]) -> None:
    """Raise OptionError if the user set another schema: the query interprets the values, not the source."""
    if without_options(given) != spark_schema(columns):
        raise OptionError(
            f"schema: the source's columns are {', '.join(columns)} and cannot be given; choose among them with columns"
        )
