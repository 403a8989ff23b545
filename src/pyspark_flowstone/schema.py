"""The columns of the source as Spark types, and the options that the schema of a table in SQL has.

The columns equal those of the Kafka connector.

`CREATE TABLE t USING flowstone OPTIONS (...)`: Spark gives the options of a table only to `schema`, when the table is
created and whenever its name is resolved. The reader and the writer get what a query adds to them, usually nothing, and
the table's schema. So the schema has the options in the metadata of its columns. A table is read and written with the
same options, and Spark adds some of its own. The source and the sink refuse options that they do not know, so each is
given its part.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

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

from pyspark_flowstone import kafka_options, options, sink_options
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
# The metadata of a table's columns that has its options as a JSON object.
METADATA = "flowstone.table"
# What Spark adds to the options of a table. It gives each option with a prefix, or without, or both.
PROVIDER, PREFIX = "provider", "option."
OF_SPARK = frozenset({PROVIDER, "path", "serialization.format", "owner", "location", "comment"})

_TUNING = kafka_options.KAFKA_PREFIX
_SOURCE_NAMES = frozenset(name.lower() for name in options.NAMES) | set(kafka_options.IGNORED)
_SOURCE_TUNING = frozenset(_TUNING + name for name in kafka_options.CONSUMER_TUNING)
_SINK_NAMES = frozenset(name.lower() for name in sink_options.NAMES)
_SINK_TUNING = frozenset(_TUNING + name for name in sink_options.PRODUCER_TUNING)
_OF_SINK_ALONE = (_SINK_NAMES | _SINK_TUNING) - _SOURCE_NAMES - _SOURCE_TUNING
_OF_SOURCE_ALONE = (_SOURCE_NAMES | _SOURCE_TUNING) - _SINK_NAMES - _SINK_TUNING


def spark_schema(columns: Sequence[str]) -> StructType:
    return StructType([StructField(name, _TYPES[name]) for name in columns])


def check_schema(given: StructType, columns: Sequence[str]) -> None:
    """Raise OptionError if the user set another schema: the query interprets the values, not the source."""
    if without_options(given) != spark_schema(columns):
        raise OptionError(
            f"schema: the source's columns are {', '.join(columns)} and cannot be given; choose among them with columns"
        )


def with_options(schema: StructType, given: Mapping[str, str]) -> StructType:
    """Return the schema of a table with its options; the same schema if the options are not a table's."""
    if not _is_table(given):
        return schema
    metadata = {METADATA: json.dumps(_declared(given))}
    return StructType([StructField(each.name, each.dataType, each.nullable, metadata) for each in schema.fields])


def without_options(schema: StructType) -> StructType:
    return StructType([StructField(each.name, each.dataType, each.nullable) for each in schema.fields])


def source_options(given: Mapping[str, str], schema: StructType | None = None) -> dict[str, str]:
    """Return the options for reading: a table's without those of the sink, and those of the query."""
    if schema is not None:
        given = {**_stored(schema), **given}
    return _without(_OF_SINK_ALONE, given) if _is_table(given) else dict(given)


def sink_options_of(given: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Return the options for writing: a table's without those of the source if the query has none of its own.

    Rows that were read from a table keep its options in their metadata, which must not count where other options say
    where the rows go.
    """
    if not any(name.lower() not in sink_options.OF_SPARK | OF_SPARK for name in given):
        given = {**_stored(schema), **given}
    return _without(_OF_SOURCE_ALONE, given) if _is_table(given) else dict(given)


def _is_table(given: Mapping[str, str]) -> bool:
    return any(name.lower() == PROVIDER or name.lower().startswith(PREFIX) for name in given)


def _stored(schema: StructType) -> dict[str, str]:
    texts = [each.metadata[METADATA] for each in schema.fields if METADATA in (each.metadata or {})]
    return {PROVIDER: "flowstone", **json.loads(texts[0])} if texts else {}


def _declared(given: Mapping[str, str]) -> dict[str, str]:
    prefixed = {name[len(PREFIX) :]: value for name, value in given.items() if name.lower().startswith(PREFIX)}
    plain = {name: value for name, value in given.items() if not name.lower().startswith(PREFIX)}
    names = {name.lower(): name for name in (*prefixed, *plain)}
    values = {name.lower(): value for name, value in (*prefixed.items(), *plain.items())}
    return {names[name]: value for name, value in values.items() if name not in OF_SPARK}


def _without(others: AbstractSet[str], given: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in _declared(given).items() if name.lower() not in others}
