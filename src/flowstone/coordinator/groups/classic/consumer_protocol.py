"""Parsing of what a coordinator needs of consumers' metadata: subscribed topics, owned and assigned partitions.

Assignors' metadata and assignments pass through unchanged; the parsed parts only decide what may expire or be deleted,
and whether a static member's return needs a rebalance. Every version of a subscription starts with version 0 (int16
version, array of topic names, user data), every version since 1 goes on with the owned partitions; every version of an
assignment starts with an array of partitions. Bytes of another form belong to a custom protocol, and their topics are
unknown.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from flowstone.types import TopicPartition

CONSUMER_PROTOCOL_TYPE = "consumer"

_OWNED_SINCE_VERSION = 1
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """Return the topics, or None if these bytes are not a consumer's subscription."""
    reader = _Reader(subscription)
    try:
        reader.int16()
        return frozenset(reader.string() for _ in range(reader.count()))
    except (struct.error, ValueError):
        return None


def owned_partitions(subscription: bytes) -> frozenset[TopicPartition]:
    """Return the partitions that a cooperative consumer owned when it joined; empty if it names none."""
    reader = _Reader(subscription)
    try:
        version = reader.int16()
        for _ in range(reader.count()):
            reader.string()
        reader.skip(max(reader.int32(), 0))
        return reader.partitions() if version >= _OWNED_SINCE_VERSION else frozenset()
    except (struct.error, ValueError):
        return frozenset()


def assigned_partitions(assignment: bytes) -> frozenset[TopicPartition]:
    reader = _Reader(assignment)
    try:
        reader.int16()
        return reader.partitions()
    except (struct.error, ValueError):
        return frozenset()


def version_of(subscription: bytes) -> int:
    """Return the version of a consumer's subscription, in which it expects its assignment; 0 if it has none."""
    try:
        return max(0, _Reader(subscription).int16())
    except struct.error:
        return 0


def has_user_data(assignment: bytes) -> bool:
    """Return whether an assignor has added data of its own to the assignment. Raises ValueError if it is malformed."""
    if not assignment:
        return False  # a member that has not synced yet
    reader = _Reader(assignment)
    try:
        reader.int16()
        reader.partitions()
        return reader.int32() > 0
    except struct.error as error:
        raise ValueError(f"this is no assignment of a consumer: {error}") from None


def encode_assignment(version: int, partitions: Iterable[TopicPartition]) -> bytes:
    """Return an assignment without user data."""
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        by_topic.setdefault(topic, []).append(index)
    parts = [_INT16.pack(version), _INT32.pack(len(by_topic))]
    for topic, indexes in by_topic.items():
        name = topic.encode()
        parts += (_INT16.pack(len(name)), name, struct.pack(f">{len(indexes) + 1}i", len(indexes), *indexes))
    return b"".join((*parts, _INT32.pack(-1)))


class _Reader:
    """A reader of Kafka's primitive types; raises struct.error or ValueError if the bytes are malformed."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def int16(self) -> int:
        (value,) = _INT16.unpack_from(self._data, self._position)
        self._position += _INT16.size
        return int(value)

    def int32(self) -> int:
        (value,) = _INT32.unpack_from(self._data, self._position)
        self._position += _INT32.size
        return int(value)

    def count(self) -> int:
        """Read the length of an array; a length beyond what the remaining bytes can hold is refused."""
        count = self.int32()
        if not 0 <= count <= (len(self._data) - self._position) // _INT16.size:
            raise ValueError("an array is longer than the bytes that are left")
        return count

    def skip(self, size_bytes: int) -> bytes:
        end = self._position + size_bytes
        if size_bytes < 0 or end > len(self._data):
            raise ValueError("a field is longer than the bytes that are left")
        skipped, self._position = self._data[self._position : end], end
        return skipped

    def string(self) -> str:
        return self.skip(self.int16()).decode()

    def partitions(self) -> frozenset[TopicPartition]:
        found: set[TopicPartition] = set()
        for _ in range(self.count()):
            topic = self.string()
            found.update(TopicPartition(topic, self.int32()) for _ in range(self.count()))
        return frozenset(found)
