"""The error of a record whose value cannot be decoded: a struct of `stage`, `class` and `message` in the column ERROR.

Records of any content get the same few classes, so that dead letters can be counted by class. A message is one sentence
and quotes at most EXCERPT_MAX characters of the record.
"""

from __future__ import annotations

from enum import StrEnum

from pyspark.sql import Column
from pyspark.sql import functions as sf

# Kafka Connect's name for this part of a pipeline.
STAGE = "VALUE_CONVERTER"
EXCERPT_MAX = 200
ERROR_TYPE = "struct<stage: string, class: string, message: string>"


class BadValue(StrEnum):
    INVALID_UTF8 = "InvalidUtf8"
    MALFORMED = "MalformedValue"  # the bytes are not in the format
    WRONG_TYPE = "WrongType"  # a field has another type than its column
    MISSING = "MissingField"  # a field is NULL or absent, and its column is NOT NULL
    BAD_FRAME = "BadFrame"  # the Confluent wire format is expected, and the bytes do not begin like it
    UNKNOWN_SCHEMA = "UnknownSchema"  # the registry has no schema with the record's id
    INCOMPATIBLE_SCHEMA = "IncompatibleSchema"  # the record's schema cannot be resolved to the reader's


def error(kind: BadValue, message: Column | str) -> Column:
    text = sf.lit(message) if isinstance(message, str) else message
    fields = {"stage": sf.lit(STAGE), "class": sf.lit(str(kind)), "message": text}
    return sf.struct(*(column.alias(name) for name, column in fields.items())).cast(ERROR_TYPE)


def no_error() -> Column:
    return sf.lit(None).cast(ERROR_TYPE)


def excerpt(text: Column, length: int = EXCERPT_MAX) -> Column:
    return sf.substring(text, 1, length)
