"""Protobuf values without a registry to columns and back, in Spark, with protobuf's own classes on the other side."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from pyspark.sql import Row, SparkSession

from flowstone.pipeline import PipelineError, formats
from flowstone.pipeline.model import Format, FormatKind
from tests.spark_pipeline.formats.format_records import cause, decoded, fields
from tests.spark_pipeline.formats.protobuf_messages import descriptor_set, message_class, shop

AT = datetime.datetime(2026, 11, 1, 10, 0, 0, 123456)


@pytest.fixture
def protobuf(tmp_path: Path) -> Format:
    path = tmp_path / "shop.desc"
    path.write_bytes(descriptor_set())
    return Format(FormatKind.PROTOBUF, str(path), "shop.Order")


def order(**more: object) -> bytes:
    found = message_class("shop.Order")(id="a", total=1.5, n=-1, state=1, big=2**64 - 1, **more)
    found.at.FromDatetime(AT)
    found.lines.add(id="x")
    found.tags["k"] = 2**32 - 1
    return bytes(found.SerializeToString(deterministic=True))


COLUMNS = {
    "id": "a", "total": 1.5, "n": -1, "at": AT, "state": "PAID", "lines": [Row(id="x")], "tags": {"k": 2**32 - 1},
    "big": Decimal(2**64 - 1), "note": None,
}  # fmt: skip


def test_messages_become_columns_and_bad_ones_errors(spark: SparkSession, protobuf: Format) -> None:
    values = [order(), order()[:-1], None, b"\x0a\x01\xff", b"", order(note="")]
    whole, short, tombstone, no_text, empty, noted = decoded(spark, values, protobuf)
    assert fields(whole) == COLUMNS
    assert cause(short).startswith("MalformedValue: the value is not a Protobuf message of this type: unexpected EOF")
    assert cause(no_text) == "InvalidUtf8: the value is not a Protobuf message of this type: invalid UTF-8"
    assert set(fields(tombstone).values()) == {None}
    assert fields(empty)["id"] == ""
    assert fields(empty)["at"] is None
    assert fields(noted)["note"] == ""


def test_rows_written_as_protobuf_are_read_by_protobuf(spark: SparkSession, protobuf: Format) -> None:
    frame = spark.createDataFrame([tuple(COLUMNS.values())], formats.columns_of(protobuf))
    [row] = frame.select(formats.encode(frame.schema, protobuf, "t-value").alias("value")).collect()
    assert message_class("shop.Order").FromString(row.value) == message_class("shop.Order").FromString(order())
    narrow = frame.select("id", "note")
    [row] = narrow.select(formats.encode(narrow.schema, protobuf, "t-value").alias("value")).collect()
    assert bytes(row.value) == b"\x0a\x01a"


def test_what_protobuf_cannot_use_is_refused(spark: SparkSession, protobuf: Format, tmp_path: Path) -> None:
    recursive = descriptor_pb2.FileDescriptorProto(name="r.proto", syntax="proto3")
    node = recursive.message_type.add(name="Node")
    node.field.add(name="next", number=1, type=11, label=1, type_name=".Node")
    Path(tmp_path, "r.desc").write_bytes(descriptor_set(recursive))
    Path(tmp_path, "text.desc").write_text("message Order {}")
    for format, message in (
        (Format(FormatKind.PROTOBUF), "the path of a descriptor set"),
        (Format(FormatKind.PROTOBUF, "missing.desc"), "cannot be read"),
        (Format(FormatKind.PROTOBUF, str(tmp_path / "text.desc")), "is not a descriptor set"),
        (Format(FormatKind.PROTOBUF, str(tmp_path / "r.desc")), "the message Node contains itself"),
        (Format(FormatKind.PROTOBUF, protobuf.schema), "several messages.*shop.Order, shop.Line"),
        (Format(FormatKind.PROTOBUF, protobuf.schema, "shop.Cart"), "no message shop.Cart"),
    ):
        with pytest.raises(PipelineError, match=message):
            formats.check(format)
    assert shop().message_type[0].name == "Order"
