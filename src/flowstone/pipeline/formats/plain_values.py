"""Raw and text values: one column `value`. A text that is not valid UTF-8 cannot be decoded; raw bytes always can."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, StringType, StructType

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.formats.bad_values import BadValue, error, no_error
from flowstone.pipeline.model import ERROR, RECORD, FormatKind

RAW_COLUMNS = StructType().add("value", BinaryType())
TEXT_COLUMNS = StructType().add("value", StringType())
INVALID_UTF8 = "the value is not valid UTF-8"


def decode_raw(records: DataFrame) -> DataFrame:
    return records.select(sf.col(RECORD)["value"].alias("value"), RECORD, no_error().alias(ERROR))


def decode_text(records: DataFrame) -> DataFrame:
    text = sf.col(RECORD)["value"].cast("string")
    bad = sf.when(~sf.is_valid_utf8(text), error(BadValue.INVALID_UTF8, INVALID_UTF8))
    return records.select(sf.when(sf.is_valid_utf8(text), text).alias("value"), RECORD, bad.alias(ERROR))


def encode(columns: StructType, kind: FormatKind) -> Column:
    """Return the only column as bytes. Raises PipelineError if there are more, or if its type does not fit."""
    allowed = (StringType,) if kind is FormatKind.TEXT else (BinaryType, StringType)
    wanted = "string" if kind is FormatKind.TEXT else "binary or string"
    if len(columns) != 1 or not isinstance(columns[0].dataType, allowed):
        found = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in columns) or "none"
        raise PipelineError(
            f"a topic with values of the format {kind} takes one {wanted} column beside the key, and the columns are: "
            f"{found}; select that column, or give the topic another format"
        )
    return sf.col(quoted(columns[0].name)).cast("binary")


def quoted(name: str) -> str:
    """Return a column's name for Spark's parser, which takes a dot for access to a field otherwise."""
    return "`" + name.replace("`", "``") + "`"
