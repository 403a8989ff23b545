"""Decoders that work on Arrow arrays in Spark's workers: how Spark calls them, and how their result becomes rows.

A decoder gets all values of an Arrow batch at once, as a binary array without NULL, and returns a struct for each value
and the causes of those that it could not decode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import DataType, StructField, StructType

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.formats.bad_values import STAGE, BadValue
from flowstone.pipeline.model import ERROR, RECORD
from pyspark_flowstone.values import OptionError
from pyspark_flowstone.versions import arrow_udf, with_arrow_column

_DECODED = "_flowstone_decoded"
_VALUE, _ERROR = "value", "error"
_ERROR_ARROW = pa.struct([("stage", pa.string()), ("class", pa.string()), ("message", pa.string())])
_ERROR_SPARK = StructType().add("stage", "string").add("class", "string").add("message", "string")


@dataclass(frozen=True)
class Decoded:
    """A struct for each value, NULL for those that have a cause."""

    rows: pa.StructArray
    causes: Mapping[int, tuple[BadValue, str]]


Decoder = Callable[[pa.Array, pa.Array | None], Decoded]


def decode(records: DataFrame, columns: StructType, decoder: Decoder, *, headers: bool = False) -> DataFrame:
    """Return the columns, RECORD and ERROR. With `headers` the decoder is given the records' headers too."""
    returned = StructType([StructField(_VALUE, columns), StructField(_ERROR, _ERROR_SPARK)])

    given = [sf.col(RECORD)["value"], *([sf.col(RECORD)["headers"]] if headers else [])]
    rows = with_arrow_column(
        records.select(RECORD), _DECODED, _on_arrays(partial(_decode_batch, decoder)), given, returned
    )
    fields = (sf.col(_DECODED)[_VALUE][each.name].alias(each.name) for each in columns)
    return rows.select(*fields, RECORD, sf.col(_DECODED)[_ERROR].alias(ERROR))


def udf(function: Callable[..., pa.Array], returned: DataType) -> Callable[..., Column]:
    """Return a function of columns that Spark's workers run on Arrow arrays.

    Raises PipelineError on a PySpark that has none.
    """
    try:
        return arrow_udf(_on_arrays(function), returned)  # type: ignore[no-any-return]
    except OptionError as error:
        raise PipelineError(f"values in Avro or Protobuf cannot be written: {error}") from error


def _on_arrays(function: Callable[..., pa.Array]) -> Callable[..., pa.Array]:
    """Return the function with the annotations by which Spark knows that it works on Arrow arrays."""

    def run(*arrays: pa.Array) -> pa.Array:
        return function(*arrays)

    run.__annotations__ = {"arrays": pa.Array, "return": pa.Array}
    return run


def _decode_batch(decoder: Decoder, values: pa.Array, headers: pa.Array | None = None) -> pa.Array:
    return decoded(values, headers, decoder)


def decoded(values: pa.Array, headers: pa.Array | None, decoder: Decoder) -> pa.Array:
    """Return a struct of value and error for each value, NULL ones included."""
    values = values.cast(pa.binary())
    if not values.null_count:
        return _with_errors(decoder(values, headers))
    found = _with_errors(decoder(values.drop_null(), headers.filter(values.is_valid()) if headers else None))
    valid = values.is_valid()
    places = pc.subtract(pc.cumulative_sum(valid.cast(pa.int64())), 1)
    return found.take(pc.if_else(valid, places, pa.scalar(None, pa.int64())))


def _with_errors(found: Decoded) -> pa.Array:
    if found.causes:
        items = [found.causes.get(index) for index in range(len(found.rows))]
        structs = [each and {"stage": STAGE, "class": str(each[0]), "message": each[1]} for each in items]
        errors = pa.array(structs, _ERROR_ARROW)
    else:
        errors = pa.nulls(len(found.rows), _ERROR_ARROW)
    return pa.StructArray.from_arrays([found.rows, errors], names=[_VALUE, _ERROR])
