"""What the tasks of the source that decodes make of a batch of records: columns, records and what is left to Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from flowstone.pipeline.formats import json_arrow
from flowstone.pipeline.formats.decoded_topics import TEXT, Decoding, column_name
from flowstone.pipeline.model import RECORD
from pyspark_flowstone.versions import arrow_schema

COLUMNS = StructType([StructField("id", LongType(), nullable=False), StructField("name", StringType())])
PLAIN, NOT_PLAIN, BAD = b'{"id": 1, "name": "a"}', b"{'id': 2}", b'{"name": "b"}'
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

pytestmark = pytest.mark.skipif(json_arrow.fields_of(COLUMNS) is None, reason="the native kernel is not built")


def batch(values: list[bytes | None]) -> pa.RecordBatch:
    """Return records as the reader gives them to a task."""
    count = len(values)
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array(["t"] * count),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "timestamp": pa.array([0] * count, pa.timestamp("us", "UTC")),
            "key": pa.nulls(count, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": pa.array([[("h", b"1")]] * count, HEADERS),
        }
    )


def rows(values: list[bytes | None], *, keeps_records: bool) -> list[tuple[object, object, object, object]]:
    """Return id, name, the record's offset and the text that is left to Spark."""
    decoding = Decoding.from_json(Decoding(COLUMNS, True, keeps_records).to_json())
    found = decoding(batch(values))
    found.validate(full=True)
    assert found.schema.names == decoding.schema.names
    assert [each.type for each in found.schema] == [each.type for each in arrow_schema(decoding.schema)]
    return [
        (each[column_name(0)], each[column_name(1)], each[RECORD] and each[RECORD]["offset"], each[TEXT])
        for each in found.to_pylist()
    ]


def test_plain_values_come_as_columns_and_without_their_record() -> None:
    assert rows([PLAIN, PLAIN], keeps_records=False) == [(1, "a", None, None)] * 2


def test_a_value_that_is_not_plain_or_not_right_comes_as_it_is_with_its_record() -> None:
    found = rows([PLAIN, NOT_PLAIN, None, BAD], keeps_records=False)
    plain, tombstone = (1, "a", None, None), (None, None, None, None)
    assert found == [plain, (None, None, 1, NOT_PLAIN), tombstone, (None, None, 3, BAD)]


def test_records_are_kept_where_they_are_needed() -> None:
    found = rows([PLAIN, BAD, None], keeps_records=True)
    assert found == [(1, "a", 0, None), (None, None, 1, BAD), (None, None, 2, None)]


def test_a_record_that_is_kept_is_whole() -> None:
    found = Decoding(COLUMNS, True, False)(batch([BAD])).to_pylist()[0][RECORD]
    assert (found["topic"], found["value"], found["headers"]) == ("t", BAD, [{"key": "h", "value": b"1"}])
