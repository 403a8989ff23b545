"""Avro values as columns of a DataFrame: what the facade of the formats calls for values without a registry."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import types as st

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.formats import arrow_values, declared
from flowstone.pipeline.formats.arrow_values import Decoded
from flowstone.pipeline.formats.avro import column_types, decoding, encoding, schemas
from flowstone.pipeline.formats.avro.decoding import Text
from flowstone.pipeline.formats.widening import widened

_FILE_BYTES_MAX = 4 * 2**20


def schema_text(declared_schema: str) -> str:
    """Return the schema's JSON: the declared text, or what is in the file that it names. Raises PipelineError."""
    text = declared_schema.strip()
    if text.startswith(("{", "[", '"')) or text in schemas.PRIMITIVES:
        return text
    try:
        with Path(text).open(encoding="utf-8") as file:
            return file.read(_FILE_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError(f"the Avro schema {text} is neither JSON nor a file that can be read: {error}") from error


def parsed(text: str, references: tuple[str, ...] = ()) -> schemas.Type:
    """Return the type of a schema. Raises PipelineError if pipelines cannot use it."""
    try:
        return schemas.parse(text, references)
    except schemas.BadSchema as error:
        raise PipelineError(f"the Avro schema {error}: {_excerpt(text)}") from error


def _excerpt(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 120 else f"{line[:120]}…"


def columns_of(text: str, references: tuple[str, ...] = ()) -> st.StructType:
    return declared.refuse_reserved(column_types.columns(parsed(text, references)))


def decode(records: DataFrame, text: str) -> DataFrame:
    return arrow_values.decode(records, columns_of(text), partial(_decode, (text, ())))


def _decode(schema: Text, values: pa.Array, headers: pa.Array | None) -> Decoded:
    return decoding.decode(values, schema, schema)


def encode(columns: st.StructType, text: str, references: tuple[str, ...] = (), prefix: bytes = b"") -> Column:
    """Return the expression of the values. `prefix` is what each value begins with."""
    wanted = columns_of(text, references)
    row = widened(columns, wanted, defaults=_defaults(parsed(text, references)))
    return arrow_values.udf(partial(_encode, text, references, prefix), st.BinaryType())(row)


def _defaults(type: schemas.Type) -> frozenset[str]:
    """Return the names of the fields that may be absent from the columns, because NULL is their default."""
    if not isinstance(type, schemas.Record):
        return frozenset()
    return frozenset(each.name for each in type.fields if each.default is None)


def _encode(text: str, references: tuple[str, ...], prefix: bytes, rows: pa.Array) -> pa.Array:
    found = encoding.encode(rows, text, references)
    return encoding.prefixed(found, prefix) if prefix else found


def schema_for(columns: st.StructType, subject: str) -> str:
    """Return the schema for columns that are written without a declared one."""
    name = re.sub("[^A-Za-z0-9]", "_", subject.removesuffix("-value")) or "Value"
    for each in columns:
        if not each.name.isidentifier() or not each.name.isascii():
            raise PipelineError(
                f"the column {json.dumps(each.name)} has a name that Avro does not allow (letters, digits and _); "
                f"rename it in a step"
            )
    return column_types.schema_of(columns, f"_{name}" if name[0].isdigit() else name)
