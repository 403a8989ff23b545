"""Records of Confluent's own serializers, decoded with the schemas that they were written with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from flowstone.pipeline.formats.arrow_values import Decoded
from flowstone.pipeline.formats.avro import decoding
from flowstone.pipeline.formats.protobuf import columns as protobuf
from flowstone.pipeline.formats.protobuf import format as protobuf_format
from flowstone.pipeline.formats.protobuf import proto_text
from flowstone.pipeline.formats.registry import framed
from flowstone.pipeline.formats.registry.settings import RegistrySettings
from flowstone.pipeline.formats.registry.wire_format import key_in_header
from tests.spark_pipeline.formats import schema_registry
from tests.spark_pipeline.formats.protobuf_messages import descriptor_set, message_class
from tests.spark_pipeline.formats.schema_registry import SchemaRegistry

V1 = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}, {"name": "n", "type": "int"}]}
V2 = {**V1, "fields": [*V1["fields"], {"name": "total", "type": "double", "default": 0.5}]}  # type: ignore[misc]
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with schema_registry.running() as found:
        yield found


def serialized(registry: SchemaRegistry, schema: Any, value: Any, **conf: Any) -> tuple[bytes, list[dict[str, Any]]]:
    headers: list[tuple[str, bytes]] = []
    with SchemaRegistryClient({"url": registry.url}) as client:
        serializer = AvroSerializer(client, json.dumps(schema), conf=conf or None)
        found = serializer(value, SerializationContext("t", MessageField.VALUE, headers))
    assert found is not None
    return found, [{"key": key, "value": text} for key, text in headers]


def decode(registry: SchemaRegistry, values: Sequence[bytes], reader: Any, headers: Any = None) -> Decoded:
    text = (json.dumps(reader), ())
    arrow = decoding.columns_of(text)

    def one(part: pa.Array, key: Any, schema: Any) -> Decoded:
        return decoding.decode(part, (schema.text, ()), text)

    given = pa.array(headers or [[]] * len(values), HEADERS)
    return framed.decode(RegistrySettings(registry.url), "AVRO", arrow, one, pa.array(values, pa.binary()), given)


def test_records_of_several_schemas_are_resolved_to_the_readers(registry: SchemaRegistry) -> None:
    old, _ = serialized(registry, V1, {"id": "a", "n": 1})
    new, _ = serialized(registry, V2, {"id": "b", "n": 2, "total": 9.0})
    found = decode(registry, [old, new, old], V2)
    first = {"id": "a", "n": 1, "total": 0.5}
    assert found.rows.to_pylist() == [first, {"id": "b", "n": 2, "total": 9.0}, first]
    assert found.causes == {}


def test_records_without_a_usable_frame_get_a_cause(registry: SchemaRegistry) -> None:
    good, _ = serialized(registry, V1, {"id": "a", "n": 1})
    json_id = registry.add("other", {"schema": "{}", "schemaType": "JSON"})
    of_json = b"\x00" + json_id.to_bytes(4, "big")
    values = [good, b"", b"\x00\x00", b"{}      ", b"\x00\x00\x00\x10\x00x", of_json, good[:-1]]
    found = decode(registry, values, V1)
    assert {index: kind.value for index, (kind, _) in found.causes.items()} == {
        1: "BadFrame", 2: "BadFrame", 3: "BadFrame", 4: "UnknownSchema", 5: "IncompatibleSchema", 6: "MalformedValue",
    }  # fmt: skip
    assert found.causes[4][1] == f"the registry {registry.url} has no schema 4096"
    assert found.rows.to_pylist() == [{"id": "a", "n": 1}, *[None] * 6]


def test_a_header_names_the_schema_by_its_guid(registry: SchemaRegistry) -> None:
    conf = {"schema.id.serializer": header_schema_id_serializer}
    value, headers = serialized(registry, V1, {"id": "a", "n": 1}, **conf)
    framed_value, _ = serialized(registry, V1, {"id": "b", "n": 2})
    assert headers[0]["value"][:1] == b"\x01"
    bad = [{"key": "__value_schema_id", "value": b"\x07"}]
    unknown = [{"key": "__value_schema_id", "value": b"\x01" + bytes(16)}]
    found = decode(
        registry,
        [value, framed_value, value, value, value],
        V1,
        [[{"key": "x", "value": None}, *headers], [], bad, unknown, [*bad, *headers]],
    )
    assert [row and row["id"] for row in found.rows.to_pylist()] == ["a", "b", None, None, "a"]
    assert {index: kind.value for index, (kind, _) in found.causes.items()} == {2: "BadFrame", 3: "UnknownSchema"}


def test_protobuf_frames_name_the_message(registry: SchemaRegistry) -> None:
    context = SerializationContext("t", MessageField.VALUE)
    messages = {name: message_class(name) for name in ("shop.Order", "shop.Line", "shop.Order.Inner")}
    with SchemaRegistryClient({"url": registry.url}) as client:
        order, line, inner = (
            ProtobufSerializer(each, client, {"use.deprecated.format": False})(each(id=name), context)
            for name, each in messages.items()
        )
    assert (order[5:6], line[5:7], inner[5:8]) == (b"\x00", b"\x02\x02", b"\x04\x00\x00")
    reader = (descriptor_set(), "shop.Order.Inner")
    decoder = partial(protobuf_format._decode, *reader)
    arrow = protobuf.arrow_columns(*reader)
    values = pa.array([inner, order, inner, b"\x00\x00\x00\x00\x01\x02\x7e"], pa.binary())
    found = framed.decode(RegistrySettings(registry.url), "PROTOBUF", arrow, decoder, values, None)
    name = "shop.Order.Inner"
    assert [row and row["id"] for row in found.rows.to_pylist()] == [name, None, name, None]
    message = "the record is the message shop.Order, and should be shop.Order.Inner"
    assert found.causes[1] == ("IncompatibleSchema", message)
    assert found.causes[3][0] == "BadFrame"


def test_a_messages_name_is_found_in_the_text_of_a_proto_file() -> None:
    text = """
        syntax = "proto3"; // message Not {
        package shop; import "a.proto";
        /* message NotEither { */
        option x = "message Nor { ";
        enum State { NEW = 0; }
        message Order { enum E { A = 0; } message Inner { string id = 1; } oneof o { Line line = 2; } message Last {} }
        message Line { reserved 1; string message = 2 [json_name = "{"]; }
    """
    names = [proto_text.message_at(text, path) for path in ((0,), (1,), (0, 0), (0, 1), (2,), (1, 0))]
    assert names == ["shop.Order", "shop.Line", "shop.Order.Inner", "shop.Order.Last", None, None]


@pytest.mark.parametrize("text", [b"", b"\x00", b"\x00\x00\x00\x01", b"\x01" + bytes(15), b"\x02" + bytes(20)])
def test_a_malformed_header_is_no_key(text: bytes) -> None:
    assert key_in_header(text, indexes=False) is None
    assert key_in_header(text, indexes=True) is None
