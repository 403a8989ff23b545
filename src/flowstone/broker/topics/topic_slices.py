"""Requests that name many partitions of many topics, split so that each part is handled in one time slice of the loop.

In a topic's message only the array of its partitions matters here; requests call it by different names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

Topic = TypeVar("Topic")

# Partitions handled in one time slice: a coordinator takes some ten microseconds for each.
PART_PARTITIONS = 500


class TopicsPart(NamedTuple):
    topics: list[Any]
    # Whether the first topic continues the last one of the part before.
    is_continued: bool


def is_large(topics: Sequence[Any], field: str) -> bool:
    """Return whether the topics and partitions are more than one part."""
    return len(topics) + sum(len(getattr(topic, field)) for topic in topics) > PART_PARTITIONS


def split_topics(topics: Iterable[Any], field: str) -> Iterator[TopicsPart]:
    """Yield the topics in parts of `PART_PARTITIONS` topics and partitions; `field` names the array of partitions."""
    part: list[Any] = []
    left, is_continued = PART_PARTITIONS, False
    for topic in topics:
        partitions: Sequence[Any] = getattr(topic, field)
        start = 0
        while True:
            end = start + max(left - 1, 1)
            part.append(topic if not start and end >= len(partitions) else _copy(topic, field, partitions[start:end]))
            left -= 1 + len(getattr(part[-1], field))
            start = end
            if left <= 0:
                yield TopicsPart(part, is_continued)
                part, left, is_continued = [], PART_PARTITIONS, start < len(partitions)
            if start >= len(partitions):
                break
    if part:
        yield TopicsPart(part, is_continued)


def join_topics(whole: list[Topic], part: Iterable[Topic], is_continued: bool) -> None:
    """Append a part's answers to those of earlier parts; their arrays of partitions are called `partitions`."""
    for topic in part:
        if is_continued and whole:
            last: Any = whole[-1]
            last.partitions = [*last.partitions, *topic.partitions]  # type: ignore[attr-defined]
            is_continued = False
        else:
            whole.append(topic)


def _copy(topic: Any, field: str, partitions: Sequence[Any]) -> Any:
    copy = object.__new__(type(topic))
    for name in topic.__slots__:
        setattr(copy, name, getattr(topic, name))
    setattr(copy, field, partitions)
    return copy
