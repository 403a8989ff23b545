"""Reads and writes the flexible record values and the keys of coordinators' topics.

Kafka generates these formats from schemas. A flexible value is a version, its fields, and a section of tagged fields;
texts, byte strings and arrays begin with their length plus one as an unsigned varint, 0 for null. A key is a type and
texts with a length of two bytes.

`ValueReader` checks every length against the bytes that are left. For malformed bytes it raises struct.error,
IndexError, ValueError or ProtocolError (`MALFORMED`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import TypeVar

from flowstone.errors import ProtocolError
from flowstone.wire.primitives import encode_uvarint, read_tag, read_tag_count, read_uvarint

MALFORMED = (struct.error, IndexError, ValueError, ProtocolError)
BYTE, SHORT, INT, LONG = Struct(">b"), Struct(">h"), Struct(">i"), Struct(">q")
NO_TAGS = b"\0"
NULL = b"\0"
TOPIC_ID_BYTES = 16

Element = TypeVar("Element")


def key(key_type: int, *texts: str) -> bytes:
    """Return a record's key: the type and the texts, each with a length of two bytes."""
    return SHORT.pack(key_type) + b"".join([SHORT.pack(len(data)) + data for data in map(str.encode, texts)])


def key_texts(data: bytes, count: int) -> list[str]:
    """Return the texts of a key; raises one of MALFORMED if it does not have exactly `count` of them."""
    texts, position = [], SHORT.size
    for _ in range(count):
        (length,) = SHORT.unpack_from(data, position)
        start, position = position + SHORT.size, position + SHORT.size + length
        if length < 0 or position > len(data):
            raise ValueError(f"a text of {length} bytes at {start} of {len(data)}")
        texts.append(data[start:position].decode())
    if position != len(data):
        raise ValueError(f"{len(data) - position} bytes too many in the key")
    return texts


def array(elements: Iterable[Element], encode_one: Callable[[Element], bytes]) -> bytes:
    encoded = [encode_one(each) for each in elements]
    return encode_uvarint(len(encoded) + 1) + b"".join(encoded)


def int_array(numbers: Sequence[int]) -> bytes:
    return encode_uvarint(len(numbers) + 1) + struct.pack(f">{len(numbers)}i", *numbers)


def blob(data: bytes) -> bytes:
    return encode_uvarint(len(data) + 1) + data


def string(text: str) -> bytes:
    return blob(text.encode())


def nullable_string(text: str | None) -> bytes:
    return NULL if text is None else string(text)


class ValueReader:
    """A reader of a value's fields, one after the other, from the field after the version on."""

    def __init__(self, data: bytes, position: int = SHORT.size) -> None:
        self._data, self._view, self._position = data, memoryview(data), position

    def number(self, form: Struct) -> int:
        return self.numbers(form)[0]

    def numbers(self, form: Struct) -> tuple[int, ...]:
        values = form.unpack_from(self._data, self._position)
        self._position += form.size
        return values

    def blob(self) -> bytes:
        return self._take(self.count())

    def string(self) -> str:
        return self.blob().decode()

    def nullable_string(self) -> str | None:
        length = self.count()
        return None if length < 0 else self._take(length).decode()

    def plain_string(self) -> str:
        """Return a text with a length of two bytes, as values that are not flexible have them."""
        return self._take(self.number(SHORT)).decode()

    def topic_id(self) -> bytes:
        return self._take(TOPIC_ID_BYTES)

    def array(self, read_one: Callable[[ValueReader], Element]) -> list[Element]:
        count = self.count()
        if count > len(self._data) - self._position:
            raise ValueError(f"an array of {count} elements is longer than the bytes that are left")
        return [read_one(self) for _ in range(count)]

    def int_array(self) -> tuple[int, ...]:
        """Return the numbers of an array of 32-bit integers; none if it is null."""
        count = max(self.count(), 0)
        return struct.unpack(f">{count}i", self._take(INT.size * count))

    def tags(self) -> dict[int, ValueReader]:
        """Read the tagged fields that end a struct; return a reader of each by its tag."""
        found = {}
        count, self._position = read_tag_count(self._view, self._position)
        for _ in range(count):
            tag, start, self._position = read_tag(self._view, self._position)
            found[tag] = ValueReader(self._data[start : self._position], 0)
        return found

    def count(self) -> int:
        """Return the length that a text, byte string or array begins with; -1 for null."""
        length, self._position = read_uvarint(self._view, self._position)
        return length - 1

    def check_end(self) -> None:
        """Raise ValueError if there are bytes behind the last field."""
        if self._position != len(self._data):
            raise ValueError(f"{len(self._data) - self._position} bytes too many")

    def _take(self, length: int) -> bytes:
        start, self._position = self._position, self._position + length
        if length < 0 or self._position > len(self._data):
            raise ValueError(f"{length} bytes at {start} of {len(self._data)}")
        return self._data[start : self._position]
