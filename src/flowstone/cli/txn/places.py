"""Parsing of TOPIC/PARTITION and TOPIC/PARTITION@OFFSET, as `flowstone explain` has them too."""

from __future__ import annotations

import re

from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.numbers import OFFSET_MAX, PARTITION_MAX
from flowstone.types import TopicPartition

_PARTITION = re.compile(r"([^/@]+)/([0-9]{1,10})")
_OFFSET = re.compile(r"([^/@]+/[0-9]{1,10})@([0-9]{1,19})")


def parse_partition(text: str) -> TopicPartition:
    """Return the partition that the text names. Raises CommandError if it names none."""
    match = _PARTITION.fullmatch(text)
    if match is None or int(match[2]) > PARTITION_MAX:
        raise CommandError(f"{text}: expected TOPIC/PARTITION, such as orders/0")
    return TopicPartition(match[1], int(match[2]))


def parse_place(text: str) -> tuple[TopicPartition, int | None]:
    """Return the partition and the offset that the text names, None without an offset. Raises CommandError."""
    match = _OFFSET.fullmatch(text)
    if match is not None and int(match[2]) <= OFFSET_MAX:
        return parse_partition(match[1]), int(match[2])
    if "@" in text:
        raise CommandError(f"{text}: expected TOPIC/PARTITION@OFFSET, such as orders/0@1234")
    return parse_partition(text), None


def place_text(partition: TopicPartition, offset: int | None = None) -> str:
    """Return the text that `parse_place` reads."""
    where = f"{partition.topic}/{partition.partition}"
    return where if offset is None else f"{where}@{offset}"
