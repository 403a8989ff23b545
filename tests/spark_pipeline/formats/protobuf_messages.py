"""Protobuf messages for tests, declared without protoc."""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

_Field = descriptor_pb2.FieldDescriptorProto
_ONE, _MANY = _Field.LABEL_OPTIONAL, _Field.LABEL_REPEATED


def _add(message: Any, number: int, name: str, type: int, label: Any = _ONE, type_name: str = "", **more: Any) -> None:
    field = message.field.add(name=name, number=number, type=type, label=label, **more)
    if type_name:
        field.type_name = type_name


@cache
def shop() -> descriptor_pb2.FileDescriptorProto:
    """Return the file of `shop.Order`, which has most kinds of fields, and `shop.Line`."""
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    state = file.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="PAID", number=1)
    order, line = file.message_type.add(name="Order"), file.message_type.add(name="Line")
    _add(line, 1, "id", _Field.TYPE_STRING)
    inner = order.nested_type.add(name="Inner")
    _add(inner, 1, "id", _Field.TYPE_STRING)
    entry = order.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    _add(entry, 1, "key", _Field.TYPE_STRING)
    _add(entry, 2, "value", _Field.TYPE_UINT32)
    _add(order, 1, "id", _Field.TYPE_STRING)
    _add(order, 2, "total", _Field.TYPE_DOUBLE)
    _add(order, 3, "n", _Field.TYPE_INT64)
    _add(order, 4, "at", _Field.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp")
    _add(order, 5, "state", _Field.TYPE_ENUM, type_name=".shop.State")
    _add(order, 6, "lines", _Field.TYPE_MESSAGE, _MANY, ".shop.Line")
    _add(order, 7, "tags", _Field.TYPE_MESSAGE, _MANY, ".shop.Order.TagsEntry")
    _add(order, 8, "big", _Field.TYPE_UINT64)
    _add(order, 9, "note", _Field.TYPE_STRING, proto3_optional=True, oneof_index=0)
    order.oneof_decl.add(name="_note")
    return file


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(shop())
    return pool


def message_class(name: str) -> Any:
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(name))


def descriptor_set(file: descriptor_pb2.FileDescriptorProto | None = None) -> bytes:
    return descriptor_pb2.FileDescriptorSet(file=[file or shop()]).SerializeToString()
