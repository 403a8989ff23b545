"""The source of topics whose JSON values are decoded by the process that reads them.

Spark hands the rows of a Python source to the JVM, and would hand the values to another Python process to be decoded
and take the columns back. Here the process that fetches the records decodes them too, so a row crosses the boundary
once. Values that the kernel leaves to Spark's parser come as they are, in TEXT. Records come whole, or only where there
is a TEXT: the key, value and headers of the others are then not handed over at all.

The columns of the values have names of their own (`column_name`): what records contain may be called as anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import BinaryType, StructField, StructType

from flowstone.pipeline.formats import json_arrow
from flowstone.pipeline.model import RECORD
from pyspark_flowstone import DefaultSource
from pyspark_flowstone.options import SourceOptions
from pyspark_flowstone.reporting import reported
from pyspark_flowstone.values import OptionError

NAME = "flowstone_decoded"
TEXT = "_text"
RECORD_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
# An option that only this source has: `Decoding` as JSON.
DECODING = "flowstone.decoding"


@dataclass(frozen=True)
class Decoding:
    """The columns into which a task decodes the values of records.

    With `keeps_records` every row keeps its record (RECORD); without, only a row whose value was not decoded (TEXT).
    """

    columns: StructType
    assumes_utc: bool
    keeps_records: bool

    @property
    def schema(self) -> StructType:
        from pyspark_flowstone.schema import spark_schema

        columns = [StructField(column_name(index), each.dataType) for index, each in enumerate(self.columns)]
        record = StructField(RECORD, spark_schema(RECORD_COLUMNS))
        return StructType([*columns, record, StructField(TEXT, BinaryType())])

    def to_json(self) -> str:
        return json.dumps([self.columns.jsonValue(), self.assumes_utc, self.keeps_records])

    @staticmethod
    def from_json(text: str) -> Decoding:
        columns, assumes_utc, keeps_records = json.loads(text)
        return Decoding(StructType.fromJson(columns), assumes_utc, keeps_records)

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        fields = json_arrow.fields_of(self.columns)
        assert fields is not None  # the driver has the same kernel
        values = rows.column("value")
        decoded = json_arrow.decode(values, fields, assumes_utc=self.assumes_utc)
        are_all_decoded = decoded.null_count == values.null_count
        is_left = None if are_all_decoded else pc.and_(decoded.is_null(), values.is_valid())
        text = pa.nulls(len(values), pa.binary()) if is_left is None else pc.if_else(is_left, values, None)
        columns = [*decoded.flatten(), self._records(rows, is_left), text]
        return pa.RecordBatch.from_arrays(columns, names=self.schema.names)

    def _records(self, rows: pa.RecordBatch, is_left: pa.BooleanArray | None) -> pa.StructArray:
        fields = [pa.field(name, rows.column(name).type) for name in RECORD_COLUMNS]
        if not self.keeps_records and is_left is None:
            return pa.nulls(len(rows), pa.struct(fields))
        records = pa.StructArray.from_arrays([rows.column(name) for name in RECORD_COLUMNS], fields=fields)
        if self.keeps_records:
            return records
        places = pa.array(range(len(rows)), pa.int64())
        return records.take(pc.if_else(is_left, places, None))


def column_name(index: int) -> str:
    return f"_column_{index}"


class DecodedTopics(DefaultSource):
    """The stream `flowstone` with other columns: those of `Decoding`, which an option has."""

    @classmethod
    def name(cls) -> str:
        return NAME

    @reported
    def schema(self) -> StructType:
        super().schema()  # checks options and topics
        return self._decoding().schema

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from pyspark_flowstone.stream import FlowstoneStreamReader, RefusedStreamReader
        from pyspark_flowstone.versions.stream_reader import for_this_version

        try:
            return for_this_version(FlowstoneStreamReader(self._source_options(), self._decoding()))
        except OptionError as error:
            return for_this_version(RefusedStreamReader(str(error)))

    def _decoding(self) -> Decoding:
        return Decoding.from_json(self.options[DECODING])

    def _source_options(self, schema: StructType | None = None) -> SourceOptions:
        from pyspark_flowstone.options import parse_options

        return parse_options({name: value for name, value in self.options.items() if name.lower() != DECODING})


def read_stream(spark: SparkSession, options: Mapping[str, str], decoding: Decoding) -> DataFrame:
    """Return a stream with the columns of `decoding`; `options` are those of the format flowstone."""
    spark.dataSource.register(DecodedTopics)
    columns = {"columns": ",".join(RECORD_COLUMNS), DECODING: decoding.to_json()}
    given = {name: value for name, value in options.items() if name.lower() != "includeheaders"}
    return spark.readStream.format(NAME).options(**given, **columns).load()
