"""Helpers that generated encoders and decoders call in rare cases, and the limits on what is decoded.

Generated code reads lengths itself if they fit in one byte or are plausible. Everything rare (long varints, long
arrays, tag sections) is handled here. Malformed input raises `ProtocolError`; reading past the end of the frame may
also raise `struct.error` or `IndexError`, which the decoders convert.

Varints with redundant zero groups are accepted, as in Kafka; varints of more than five bytes are not.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from flowstone.errors import ProtocolError

# Kafka uses at most four today; this leaves space for more without costing memory or time.
TAGGED_FIELDS_MAX = 64
# A Fetch of every partition of a large cluster has a few hundred thousand elements; Kafka has no such limit.
ARRAY_LENGTH_MAX = 100_000
# Total of all nested arrays of a request: 100 MiB could contain millions of empty partitions.
NESTED_ELEMENTS_MAX = 100_000
# Topics and batches of a Produce in total. Java's producer sends at most 12,500 minimal batches in 1 MB.
PRODUCE_ELEMENTS_MAX = 20_000
# The limit of the old encoding's signed 16-bit length also applies to compact strings, as in Kafka.
STRING_LENGTH_MAX = 0x7FFF
# Elements that a sliced codec handles before it yields: some tenths of a millisecond.
SLICE_ELEMENTS = 256
# Shorter arrays are not checked against the remaining bytes: reading the elements detects the error soon.
ARRAY_LENGTH_UNCHECKED_MAX = 126

_UVARINT_BYTES_MAX = 5
_UINT32_MAX = 0xFFFFFFFF


def read_uvarint(view: memoryview, position: int) -> tuple[int, int]:
    """Return an unsigned varint and the position after it."""
    value = 0
    for index in range(_UVARINT_BYTES_MAX):
        byte = view[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if value > _UINT32_MAX:
                break
            return value, position + index + 1
    raise ProtocolError("a varint does not fit in 32 bits")


def encode_uvarint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


ONE_BYTE = tuple(bytes((value,)) for value in range(0x80))


def check_array_length(length: int, bytes_left: int, element_size_bytes_min: int) -> None:
    """Raise ProtocolError if an array's length exceeds the limits, before memory is allocated for it."""
    if not 0 <= length <= ARRAY_LENGTH_MAX or length * element_size_bytes_min > bytes_left:
        raise ProtocolError(f"an array of {length} elements does not fit in the {bytes_left} bytes left")


def read_tag_count(view: memoryview, position: int) -> tuple[int, int]:
    count, position = read_uvarint(view, position)
    if count > TAGGED_FIELDS_MAX:
        raise ProtocolError(f"{count} tagged fields in one struct")
    return count, position


def read_tag(view: memoryview, position: int) -> tuple[int, int, int]:
    """Return the tag, start and end of one tagged field."""
    tag, position = read_uvarint(view, position)
    size, position = read_uvarint(view, position)
    end = position + size
    if end > len(view):
        raise ProtocolError(f"tagged field {tag} runs past the end of the frame")
    return tag, position, end


def skip_tags(view: memoryview, position: int) -> int:
    """Skip a tag section that has no known tags (KIP-482), starting at its count; return the position after it."""
    count, position = read_tag_count(view, position)
    for _ in range(count):
        _, _, position = read_tag(view, position)
    return position


def encode_tags(tags: Sequence[tuple[int, bytes]]) -> bytes:
    """Return a tag section of encoded values, in ascending order of tags."""
    parts = [encode_uvarint(len(tags))]
    for tag, value in tags:
        parts += (encode_uvarint(tag), encode_uvarint(len(value)), value)
    return b"".join(parts)


class ArrayCalls(dict[int, Callable[..., Any]]):
    """Cache of the functions that pack or unpack an array of one fixed-size type, by length; small lengths are kept."""

    KEPT_LENGTH_MAX = 256

    def __init__(self, code: str, method: str) -> None:
        super().__init__()
        self._code = code
        self._method = method

    def __missing__(self, length: int) -> Callable[..., Any]:
        # A count before `16s` would be read as part of the size.
        layout = ">" + self._code * length if self._code == "16s" else f">{length}{self._code}"
        call: Callable[..., Any] = getattr(struct.Struct(layout), self._method)
        if length <= self.KEPT_LENGTH_MAX:
            self[length] = call
        return call
