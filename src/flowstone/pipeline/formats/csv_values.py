"""CSV values: one line of fields a record, in the order of the columns, decoded by Spark's own parser in the JVM.

`from_csv` alone ignores a second line. So a field of our own is appended to the value, and the column for it shows
whether the value is exactly one line with one field for each column. Its content is random, so that no record can
contain it.

Spark raises for a line with more fields than `maxColumns`, and no option makes a bad record of that. So a value with
too many separators is not parsed.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.formats.bad_values import BadValue, error, excerpt
from flowstone.pipeline.formats.plain_values import INVALID_UTF8, quoted
from flowstone.pipeline.model import ERROR, RECORD

_MARK = f"f{secrets.token_hex(8)}"
_CORRUPT = f"{_MARK}_corrupt"
_TEXT, _PARSED, _WHOLE = (f"{_MARK}_{name}" for name in ("text", "parsed", "whole"))
_FIELD_EXCERPT_MAX = 60
_NO_CSV = (st.ArrayType, st.MapType, st.StructType, st.VariantType, st.VarcharType, st.CharType)
FIELDS_MAX = 20_000
# What `decode` and `encode` decide themselves.
_RESERVED = ("mode", "columnNameOfCorruptRecord", "header", "multiLine", "lineSep", "comment", "maxColumns")


def check(columns: st.StructType, options: Mapping[str, str]) -> None:
    """Raise PipelineError for columns and options that CSV values cannot have."""
    for each in columns:
        if isinstance(each.dataType, _NO_CSV):
            raise PipelineError(
                f"the column {each.name} is {each.dataType.simpleString()}, which a CSV value cannot have; "
                f"declare it as string, or give the topic the format json"
            )
    reserved = sorted(set(map(str.lower, options)) & set(map(str.lower, _RESERVED)))
    if reserved:
        raise PipelineError(f"the CSV option {reserved[0]} cannot be set: a value is one line without a header")
    if len(columns) >= FIELDS_MAX:
        raise PipelineError(f"a CSV value has at most {FIELDS_MAX} fields, and the schema has {len(columns)} columns")


def decode(
    records: DataFrame, columns: st.StructType, options: Mapping[str, str], value: Column | None = None
) -> DataFrame:
    """Return the columns, RECORD and ERROR. `value` is the CSV's bytes if they are not the whole value."""
    text = sf.col(RECORD)["value"].cast("string") if value is None else value.cast("string")
    separator = _separator(options)
    # The expression would replace bytes that are not UTF-8.
    line = sf.when(sf.is_valid_utf8(text), sf.regexp_replace(text, "\r?\n$", "")).otherwise(text)
    fields = [st.StructField(each.name, each.dataType) for each in columns]
    schema = st.StructType([*fields, st.StructField(_MARK, st.StringType()), st.StructField(_CORRUPT, st.StringType())])
    parse_options = {**options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    parsed = sf.from_csv(_marked(line, separator), _ddl(schema), parse_options)
    rows = records.select(RECORD, line.alias(_TEXT), parsed.alias(_PARSED))
    found = sf.col(_PARSED)
    given = [found[each.name].isNotNull() for each in columns if not each.nullable]
    one = (found[_MARK] == _MARK) & found[_CORRUPT].isNull()
    whole = sf.coalesce(reduce(Column.__and__, given, one), sf.lit(False))
    rows = rows.select(RECORD, _TEXT, _PARSED, whole.alias(_WHOLE))
    bad = sf.when(sf.col(RECORD)["value"].isNotNull() & ~sf.col(_WHOLE), _cause(columns, options))
    values = (sf.when(sf.col(_WHOLE), found[each.name]).alias(each.name) for each in columns)
    return rows.select(*values, RECORD, bad.alias(ERROR))


def encode(columns: st.StructType, options: Mapping[str, str]) -> Column:
    check(columns, options)
    row = sf.struct(*(sf.col(quoted(each.name)) for each in columns))
    # With Spark's default a timestamp's microseconds would be lost.
    return sf.to_csv(row, {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", **options}).cast("binary")


def _separator(options: Mapping[str, str]) -> str:
    named = {name.lower(): value for name, value in options.items()}
    return named.get("sep") or named.get("delimiter") or ","


def _marked(line: Column, separator: str) -> Column:
    """Return the line with a field of our own at its end, and NULL if it cannot be parsed."""
    separators = sf.length(line) - sf.length(sf.replace(line, sf.lit(separator)))
    is_readable = sf.is_valid_utf8(line) & (separators < sf.lit(FIELDS_MAX * len(separator)))
    return sf.when(is_readable, sf.concat(line, sf.lit(separator + _MARK)))


def _ddl(schema: st.StructType) -> str:
    return ", ".join(f"{quoted(each.name)} {each.dataType.simpleString()}" for each in schema)


def _cause(columns: st.StructType, options: Mapping[str, str]) -> Column:
    """Return the error of a value that is known to be bad."""
    text, found = sf.col(_TEXT), sf.col(_PARSED)
    number = len(columns)
    cause = sf.when(~sf.is_valid_utf8(text), error(BadValue.INVALID_UTF8, INVALID_UTF8))
    shape = sf.concat(
        sf.lit(f"the value is not one line of CSV with {number} field{'s' * (number > 1)}: "), excerpt(text)
    )
    is_shaped = sf.coalesce(found[_MARK] == _MARK, sf.lit(False))
    cause = cause.when(~is_shaped, error(BadValue.MALFORMED, shape))
    for kind, condition, message in _field_causes(columns, options):
        cause = cause.when(condition, error(kind, message))
    return cause.otherwise(error(BadValue.MALFORMED, shape))


def _field_causes(columns: st.StructType, options: Mapping[str, str]) -> Iterator[tuple[BadValue, Column, Column]]:
    texts_schema = st.StructType([st.StructField(f"c{n}", st.StringType()) for n in range(len(columns) + 1)])
    texts = sf.from_csv(_marked(sf.col(_TEXT), _separator(options)), _ddl(texts_schema), dict(options))
    for place, each in enumerate(columns):
        absent, text = sf.col(_PARSED)[each.name].isNull(), texts[f"c{place}"]
        wrong = f"the field {each.name} should be {each.dataType.simpleString()}, and is: "
        yield (
            BadValue.WRONG_TYPE,
            absent & text.isNotNull(),
            sf.concat(sf.lit(wrong), excerpt(text, _FIELD_EXCERPT_MAX)),
        )
        if not each.nullable:
            missing = f"the field {each.name} is NOT NULL in the schema, and the value has none"
            yield BadValue.MISSING, absent, sf.lit(missing)
