"""JSON values: one object a record, decoded by the native kernel if that is safe, otherwise by Spark's own parser.

`json_arrow` decodes the plain values, usually all of them, in a fraction of the time. What it leaves is decoded by the
JVM, as follows, and this is what defines the format.

`from_json` alone accepts too much: it ignores text after the object, and takes an array of objects for its first one.
So a value is parsed as the first element of an array whose second element is a marker of our own:

    {"<key>": [ <the value>, {"<key>": true} ]}

The array has two elements, of which the marker is the second, only if the value is exactly one JSON object. The key is
random, so that no record can contain it. Spark's corrupt-record column tells whether all fields have their type.

Why a value is bad is found out by further expressions, which Spark evaluates for bad values only.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from functools import partial, reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, BooleanType, StringType, StructField, StructType

from flowstone.pipeline.formats import arrow_values, decoded_topics, json_arrow
from flowstone.pipeline.formats.bad_values import BadValue, error, excerpt
from flowstone.pipeline.formats.decoded_topics import TEXT, Decoding, column_name
from flowstone.pipeline.formats.plain_values import INVALID_UTF8, quoted
from flowstone.pipeline.model import ERROR, RECORD

# One for the process: a new one for each micro-batch would have Spark compile the query anew.
_KEY = f"_{secrets.token_hex(8)}"
_CORRUPT = f"{_KEY}_corrupt"
_TEXT, _PARSED, _ITEM, _ONE, _FITS, _PLAIN = (
    f"{_KEY}_{name}" for name in ("text", "parsed", "item", "one", "fits", "plain")
)
_FIELD_EXCERPT_MAX = 60

READ_OPTIONS = {"allowSingleQuotes": "false"}
# With Spark's default a timestamp's microseconds would be lost.
WRITE_OPTIONS = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}


def decode(
    records: DataFrame, columns: StructType, options: Mapping[str, str], value: Column | None = None
) -> DataFrame:
    """Return the columns, RECORD and ERROR. `value` is the JSON's bytes if they are not the whole value."""
    given = sf.col(RECORD)["value"] if value is None else value
    fields = None if options or _is_legacy(records.sparkSession) else json_arrow.fields_of(columns)
    if fields is None:
        return _parsed(records.select(RECORD, given.cast("string").alias(_TEXT)), columns, options)
    zone = records.sparkSession.conf.get("spark.sql.session.timeZone")
    plain = arrow_values.udf(partial(json_arrow.decode, fields=fields, assumes_utc=zone == "UTC"), _nullable(columns))
    found = records.select(RECORD, given.alias(_TEXT), plain(given).alias(_PLAIN))
    rest = sf.when(sf.col(_PLAIN).isNull(), sf.col(_TEXT)).cast("string")
    named = [sf.col(_PLAIN)[each.name].alias(column_name(index)) for index, each in enumerate(columns)]
    return _parsed(found.select(sf.col(RECORD), rest.alias(_TEXT), *named), columns, options)


def read_stream(
    spark: SparkSession, columns: StructType, options: Mapping[str, str], *, keeps_records: bool
) -> DataFrame | None:
    """Return a stream of topics as `decode` does, whose values are decoded where they are read; None if none can be.

    `options` are those of the format flowstone. Without `keeps_records` only some rows have a RECORD, and all that have
    an ERROR do.
    """
    if _is_legacy(spark) or json_arrow.fields_of(columns) is None:
        return None
    zone = spark.conf.get("spark.sql.session.timeZone")
    decoding = Decoding(columns, zone == "UTC", keeps_records)
    read = decoded_topics.read_stream(spark, options, decoding)
    names = [sf.col(column_name(index)) for index in range(len(columns))]
    return _parsed(read.select(sf.col(RECORD), sf.col(TEXT).cast("string").alias(_TEXT), *names), columns, {})


def _parsed(texts: DataFrame, columns: StructType, options: Mapping[str, str]) -> DataFrame:
    """Decode the column _TEXT with Spark. Rows whose columns are decoded already have no text."""
    text = sf.col(_TEXT)
    plain = [each for each in texts.columns if each not in (RECORD, _TEXT)]
    schema = _wrapped(columns)
    parse_options = {**READ_OPTIONS, **options, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    wrapped = sf.concat(sf.lit(f'{{"{_KEY}":['), text, sf.lit(f',{{"{_KEY}":true}}]}}'))
    parsed = sf.from_json(sf.when(sf.is_valid_utf8(text), wrapped), schema, parse_options)
    rows = texts.select(RECORD, *plain, _TEXT, parsed.alias(_PARSED))
    elements, item = sf.col(_PARSED)[_KEY], sf.get(sf.col(_PARSED)[_KEY], sf.lit(0))
    marked = sf.coalesce(sf.get(elements, sf.lit(1))[_KEY], sf.lit(False)) & (sf.size(elements) == 2)
    one, fits = marked & item.isNotNull(), sf.col(_PARSED)[_CORRUPT].isNull()
    rows = rows.select(RECORD, *plain, _TEXT, item.alias(_ITEM), one.alias(_ONE), fits.alias(_FITS))
    required = [sf.col(_ITEM)[each.name].isNotNull() for each in columns if not each.nullable]
    whole = sf.coalesce(reduce(Column.__and__, required, sf.col(_ONE) & sf.col(_FITS)), sf.lit(False))
    bad = sf.when(text.isNotNull() & ~whole, _cause(columns))
    fields = [sf.when(whole, sf.col(_ITEM)[each.name]) for each in columns]
    if plain:
        decoded = zip(plain, fields, strict=True)
        fields = [sf.when(text.isNull(), sf.col(name)).otherwise(field) for name, field in decoded]
    named = (field.alias(each.name) for each, field in zip(columns, fields, strict=True))
    return rows.select(*named, RECORD, bad.alias(ERROR))


def _is_legacy(spark: SparkSession) -> bool:
    """Return whether Spark is set to read dates and times as its second version did."""
    return str(spark.conf.get("spark.sql.legacy.timeParserPolicy")).upper() == "LEGACY"


def encode(columns: StructType, options: Mapping[str, str]) -> Column:
    row = sf.struct(*(sf.col(quoted(each.name)) for each in columns))
    return sf.to_json(row, {**WRITE_OPTIONS, **options}).cast("binary")


def _nullable(columns: StructType) -> StructType:
    return StructType([StructField(each.name, each.dataType) for each in columns])


def _wrapped(columns: StructType) -> StructType:
    item = StructType([*_nullable(columns), StructField(_KEY, BooleanType())])
    return StructType([StructField(_KEY, ArrayType(item)), StructField(_CORRUPT, StringType())])


def _cause(columns: StructType) -> Column:
    """Return the error of a value that is known to be bad."""
    text, item = sf.col(_TEXT), sf.col(_ITEM)
    texts = sf.from_json(text, "map<string, string>", dict(READ_OPTIONS))  # each field as the text it has
    cause = sf.when(~sf.is_valid_utf8(text), error(BadValue.INVALID_UTF8, INVALID_UTF8))
    cause = cause.when(
        sf.trim(text) == "", error(BadValue.MALFORMED, "the value is empty, and should be a JSON object")
    )
    no_object = sf.concat(sf.lit("the value is not a JSON object: "), excerpt(text))
    cause = cause.when(texts.isNull(), error(BadValue.MALFORMED, no_object))
    not_one = sf.concat(sf.lit("the value is not exactly one JSON object: "), excerpt(text))
    cause = cause.when(~sf.coalesce(sf.col(_ONE), sf.lit(False)), error(BadValue.MALFORMED, not_one))
    for kind, condition, message in _field_causes(columns, texts, item):
        cause = cause.when(condition, error(kind, message))
    nested = "a field inside an object or an array has another type than the schema says"
    return cause.otherwise(error(BadValue.WRONG_TYPE, nested))


def _field_causes(columns: StructType, texts: Column, item: Column) -> Iterator[tuple[BadValue, Column, Column | str]]:
    for each in columns:
        text, absent = texts[each.name], item[each.name].isNull()
        wrong = sf.concat(
            sf.lit(f"the field {each.name} should be {each.dataType.simpleString()}, and is: "),
            excerpt(text, _FIELD_EXCERPT_MAX),
        )
        yield BadValue.WRONG_TYPE, absent & text.isNotNull(), wrong
        if not each.nullable:
            yield BadValue.MISSING, absent, f"the field {each.name} is NOT NULL in the schema, and the value has none"
