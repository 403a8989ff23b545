"""Reader of the metrics that clients push: OpenTelemetry's protobuf messages, as far as metrics need them (KIP-714).

Protobuf's fields are numbered, and every one that is not named here is skipped. Histograms are read as their count and
their sum. Knows nothing of the broker; limits the number of data points, so that a small message stays cheap.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from flowstone.errors import ProtocolError

POINTS_MAX = 2_000
"""Data points in one message; further ones are ignored."""

ATTRIBUTES_MAX = 8
"""Attributes of a data point; further ones are ignored."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_RESOURCE_METRICS, _SCOPE_METRICS, _METRICS, _NAME = 1, 2, 2, 1
_GAUGE, _SUM, _HISTOGRAM = 5, 7, 9
_DATA_POINTS, _TEMPORALITY, _DELTA = 1, 2, 1
_ATTRIBUTES, _AS_DOUBLE, _AS_INT = 7, 4, 6
_HISTOGRAM_ATTRIBUTES, _COUNT, _TOTAL = 9, 4, 5
_DOUBLE, _INT64 = struct.Struct("<d"), struct.Struct("<q")


class Point(NamedTuple):
    """One value of a metric."""

    name: str
    attributes: tuple[tuple[str, str], ...]
    value: float
    is_delta: bool  # whether the value counts from the last push


def read_points(data: bytes) -> list[Point]:
    """Return the values in a MetricsData message. Raises ProtocolError if it is malformed."""
    points: list[Point] = []
    try:
        for resource in _messages(data, _RESOURCE_METRICS):
            for scope in _messages(resource, _SCOPE_METRICS):
                for metric in _messages(scope, _METRICS):
                    for point in _points_of(metric):
                        if len(points) >= POINTS_MAX:
                            return points
                        points.append(point)
    except (struct.error, IndexError, ValueError) as error:
        raise ProtocolError(f"the pushed metrics cannot be read: {error}") from error
    return points


def _points_of(metric: bytes) -> Iterator[Point]:
    name = next(_messages(metric, _NAME), b"").decode()
    for number, _kind, value in _fields(metric):
        if number in (_GAUGE, _SUM) and isinstance(value, bytes):
            is_delta = number == _SUM and _is_delta(value)
            for point in _messages(value, _DATA_POINTS):
                yield Point(name, _attributes(point, _ATTRIBUTES), _number(point), is_delta)
        elif number == _HISTOGRAM and isinstance(value, bytes):
            is_delta = _is_delta(value)
            for point in _messages(value, _DATA_POINTS):
                attributes = _attributes(point, _HISTOGRAM_ATTRIBUTES)
                fields = {number: raw for number, _kind, raw in _fields(point)}
                count, total = fields.get(_COUNT, b"\0" * 8), fields.get(_TOTAL, b"\0" * 8)
                if isinstance(count, bytes) and isinstance(total, bytes):
                    yield Point(f"{name}.count", attributes, float(_INT64.unpack(count)[0]), is_delta)
                    yield Point(f"{name}.sum", attributes, _DOUBLE.unpack(total)[0], is_delta)


def _is_delta(container: bytes) -> bool:
    return any(number == _TEMPORALITY and value == _DELTA for number, _kind, value in _fields(container))


def _number(point: bytes) -> float:
    for number, kind, value in _fields(point):
        if kind == _FIXED64 and isinstance(value, bytes):
            if number == _AS_DOUBLE:
                return float(_DOUBLE.unpack(value)[0])
            if number == _AS_INT:
                return float(_INT64.unpack(value)[0])
    return 0.0


def _attributes(point: bytes, field: int) -> tuple[tuple[str, str], ...]:
    found = []
    for pair in _messages(point, field):
        key = next(_messages(pair, 1), b"").decode()
        text = next(_messages(next(_messages(pair, 2), b""), 1), b"").decode()
        found.append((key, text))
        if len(found) == ATTRIBUTES_MAX:
            break
    return tuple(found)


def _messages(data: bytes, wanted: int) -> Iterator[bytes]:
    """Yield the values of a field that is a message, a text or bytes."""
    for number, kind, value in _fields(data):
        if number == wanted and kind == _BYTES and isinstance(value, bytes):
            yield value


def _fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yield the number, the wire type and the value of each field."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, kind = key >> 3, key & 7
        value: int | bytes
        if kind == _VARINT:
            value, position = _varint(data, position)
        else:
            if kind == _BYTES:
                size, position = _varint(data, position)
            elif kind in (_FIXED64, _FIXED32):
                size = 8 if kind == _FIXED64 else 4
            else:
                raise ValueError(f"field {number} has the wire type {kind}")
            value = data[position : position + size]
            if len(value) != size:
                raise ValueError(f"field {number} runs past the end")
            position += size
        yield number, kind, value


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("a number has more than 64 bits")
