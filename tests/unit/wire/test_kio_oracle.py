"""Our bytes are the bytes of kio, a library generated from Kafka's own descriptions, in every version it has."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import io
import re
import typing
import uuid

from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from tests.unit.wire.test_round_trips import EXAMPLES

# Tagged fields that Kafka does not have; without them the bytes are Kafka's.
OWN_TAGS_FROM = 10_000
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def kio_class(case):
    words = re.sub("(?<!^)([A-Z])", r"_\1", case.api_name).lower()
    module = importlib.import_module(f"kio.schema.{words}.v{case.version}.{case.direction}")
    return getattr(module, case.struct.name)


def to_kio(message, struct, version, target):
    """The same message as a kio entity: the fields are in the same order, some under kinder types."""
    ours = [field for field in struct.fields if version in field.versions]
    for field in [field for field in ours if field.tag is not None and field.tag >= OWN_TAGS_FROM]:
        setattr(message, field.name, None)
        ours.remove(field)
    theirs = dataclasses.fields(target)
    values = {}
    for field, their_field in zip(ours, theirs, strict=True):
        value = getattr(message, field.name)
        if field.struct is not None:
            inner = inner_class(their_field.type)
            if field.is_array and value is not None:
                value = tuple(to_kio(item, field.struct, version, inner) for item in value)
            elif value is not None:
                value = to_kio(value, field.struct, version, inner)
            elif field.tag is not None:
                continue
        elif field.is_array and value is not None:
            value = tuple(value)
        else:
            value = to_kio_value(value, their_field.metadata["kafka_type"])
        values[their_field.name] = value
    return target(**values)


def inner_class(annotation):
    """The dataclass within `X`, `X | None`, `tuple[X, ...]` and the like."""
    if dataclasses.is_dataclass(annotation):
        return annotation
    return next(filter(None, map(inner_class, typing.get_args(annotation))), None)


def to_kio_value(value, kafka_type):
    match kafka_type:
        case "error_code":
            return ErrorCode(value)
        case "timedelta_i32" | "timedelta_i64":
            return datetime.timedelta(milliseconds=value)
        case "datetime_i64":
            return None if value == -1 else EPOCH + datetime.timedelta(milliseconds=value)
        case "uuid":
            return None if value == bytes(16) else uuid.UUID(bytes=value)
        case _:
            return value


@given(data=st.data())
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True)
def test_the_bytes_are_those_of_kio(case, messages_of, data):
    target = kio_class(case)
    message = data.draw(messages_of(case))
    theirs = to_kio(message, case.struct, case.version, target)
    buffer = io.BytesIO()
    entity_writer(target)(buffer, theirs)
    assert case.encode(message) == buffer.getvalue()
    decoded, size = entity_reader(target)(case.encode(message), 0)
    assert (decoded, size) == (theirs, len(buffer.getvalue()))
    assert case.decode(buffer.getvalue()) == message
