"""The columns are those of Spark's Kafka connector."""

from __future__ import annotations

import pyarrow as pa
import pytest

from flowstone.arrow.schema import COLUMNS, schema


def test_the_columns_are_the_kafka_connectors() -> None:
    assert schema().equals(
        pa.schema(
            [
                ("key", pa.binary()),
                ("value", pa.binary()),
                ("topic", pa.string()),
                ("partition", pa.int32()),
                ("offset", pa.int64()),
                ("timestamp", pa.timestamp("us", "UTC")),
                ("timestampType", pa.int32()),
            ]
        )
    )


def test_headers_are_what_spark_makes_of_its_own_type() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    conversion = pytest.importorskip("pyspark.sql.pandas.types")
    header = types.StructType().add("key", "string").add("value", "binary")
    of_spark = types.StructType().add("headers", types.ArrayType(header)).add("timestamp", "timestamp")

    ours = schema(["headers", "timestamp"])

    assert ours == conversion.to_arrow_schema(of_spark, timezone="UTC")
    assert ours.field("headers").type.value_field.name == "element"


def test_the_order_asked_for_is_kept() -> None:
    assert schema(["offset", "key"]).names == ["offset", "key"]


def test_a_column_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(ValueError, match=r"there is no column 'val'; .*key, value, topic.*headers"):
        schema([*COLUMNS, "val"])
