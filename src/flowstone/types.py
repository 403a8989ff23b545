"""Small value types that many packages share."""

from __future__ import annotations

from typing import NamedTuple

ZERO_UUID = bytes(16)

Bytes = bytes | bytearray | memoryview


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
