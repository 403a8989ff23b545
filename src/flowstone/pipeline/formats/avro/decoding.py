"""Avro values of a batch to one Arrow struct, with the causes of those that cannot be decoded."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa

from flowstone.pipeline.formats.arrow_values import Decoded
from flowstone.pipeline.formats.avro import column_types, schemas
from flowstone.pipeline.formats.avro.nodes import Node, RecordNode
from flowstone.pipeline.formats.avro.resolution import Incompatible, resolve
from flowstone.pipeline.formats.bad_values import BadValue
from flowstone.pipeline.formats.cursor import ALL, Cursor

_PROGRAMS_MAX = 200

Text = tuple[str, tuple[str, ...]]  # a schema, and those that it refers to


@lru_cache(_PROGRAMS_MAX)
def _program(writer: Text, reader: Text) -> Node | str:
    """Return what reads values of the writer's schema, or why it cannot be done."""
    try:
        return resolve(schemas.parse(*writer), schemas.parse(*reader))
    except Incompatible as error:
        return str(error)
    except schemas.BadSchema as error:
        return f"the record's schema {error}"


def decode(values: pa.Array, writer: Text, reader: Text) -> Decoded:
    """Return a struct of the reader's columns for each value. `values` is binary, without NULL."""
    program = _program(writer, reader)
    wanted = columns_of(reader)
    if isinstance(program, str):
        causes = dict.fromkeys(range(len(values)), (BadValue.INCOMPATIBLE_SCHEMA, program))
        return Decoded(pa.nulls(len(values), wanted), causes)
    cursor = Cursor(values)
    columns = program.columns(cursor, ALL) if isinstance(program, RecordNode) else [program.read(cursor, ALL)]
    cursor.finish()
    mask = pa.array(cursor.bad) if cursor.causes else None
    return Decoded(pa.StructArray.from_arrays(columns, fields=list(wanted), mask=mask), cursor.causes)


@lru_cache(_PROGRAMS_MAX)
def columns_of(reader: Text) -> pa.DataType:
    """Return the struct of a reader's columns."""
    type = schemas.parse(*reader)
    arrow = column_types.arrow_type(type)
    return arrow if isinstance(type, schemas.Record) else pa.struct([pa.field(column_types.VALUE, arrow)])
