"""Metrics in OpenTelemetry's protobuf form, written here field by field."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowstone.errors import ProtocolError
from flowstone.wire import otlp
from flowstone.wire.otlp import Point, read_points


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def message(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def fixed(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 1) + content


def attribute(key: str, text: str, number: int = 7) -> bytes:
    return message(number, message(1, key.encode()) + message(2, message(1, text.encode())))


def pushed(*metrics: bytes) -> bytes:
    scope = b"".join(message(2, metric) for metric in metrics)
    return message(1, message(2, scope))


def gauge(name: str, value: float, *attributes: bytes) -> bytes:
    point = b"".join(attributes) + fixed(3, bytes(8)) + fixed(4, struct.pack("<d", value))
    return message(1, name.encode()) + message(3, b"unit") + message(5, message(1, point))


def total(name: str, value: int, temporality: int = 1) -> bytes:
    point = fixed(6, struct.pack("<q", value))
    return message(1, name.encode()) + message(7, message(1, point) + varint(2 << 3) + varint(temporality))


def test_gauges_sums_and_histograms_are_read() -> None:
    histogram = message(1, attribute("k", "v", 9) + fixed(4, struct.pack("<q", 3)) + fixed(5, struct.pack("<d", 1.5)))
    data = pushed(
        gauge("a.b", 2.5, attribute("topic", "t")),
        total("c", 7),
        total("d", 9, temporality=2),
        message(1, b"h") + message(9, histogram + varint(2 << 3) + varint(1)),
    )
    assert read_points(data) == [
        Point("a.b", (("topic", "t"),), 2.5, False),
        Point("c", (), 7.0, True),
        Point("d", (), 9.0, False),
        Point("h.count", (("k", "v"),), 3.0, True),
        Point("h.sum", (("k", "v"),), 1.5, True),
    ]


def test_points_and_attributes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [attribute(str(number), "") for number in range(otlp.ATTRIBUTES_MAX + 5)]
    assert len(read_points(pushed(gauge("a", 1, *many)))[0].attributes) == otlp.ATTRIBUTES_MAX
    monkeypatch.setattr(otlp, "POINTS_MAX", 2)
    assert len(read_points(pushed(*[gauge("a", 1)] * 5))) == 2


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        read_points(data)


@given(st.integers(0, 80))
def test_a_message_that_is_cut_is_refused_or_shorter(length: int) -> None:
    whole = pushed(gauge("a", 1.0, attribute("k", "v")), total("b", 2))
    try:
        found = read_points(whole[:length])
    except ProtocolError:
        return
    assert len(found) <= 2
