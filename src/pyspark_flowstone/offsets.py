"""Offsets for planning: their JSON form, ranges, and splitting and limiting of ranges.

The JSON form is that of the Kafka connector, `{"topic": {"partition": offset}}`, so checkpoints are compatible. Those
of streaming queries also have the ids of the topics, as `{"topic@id": {}}`: the connector takes that for a topic of
which no partition is read, and ignores it (ADR 0026). The module is pure: it knows no broker and no Spark.

Invariant: a plan depends only on the arguments. Spark plans a batch again after a failure and must get the same tasks,
so every result is sorted by topic and partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from flowstone.types import TopicPartition, topic_id_keys, topic_ids_among

EARLIEST = -2
LATEST = -1

Offsets = dict[TopicPartition, int]
TopicIds = dict[str, bytes]  # by name; topics of brokers that have no ids are absent
JsonOffsets = dict[str, dict[str, int]]


class QueryOffsets(NamedTuple):
    """The position of a streaming query in each partition, with the ids of the topics, as its checkpoint has them."""

    offsets: Offsets
    topic_ids: TopicIds


class OffsetRange(NamedTuple):
    """The offsets of one partition from `start` to `end`, exclusive, of the topic with an id; None: of any."""

    partition: TopicPartition
    start: int
    end: int
    topic_id: bytes | None = None

    @property
    def offset_count(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.partition} [{self.start}, {self.end})"


def recreated(before: Mapping[str, bytes], now: Mapping[str, bytes]) -> set[str]:
    """Return the topics that have another id now: they were deleted and created again."""
    return {topic for topic, topic_id in before.items() if now.get(topic, topic_id) != topic_id}


def to_json(offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, bytes] | None = None) -> JsonOffsets:
    found: JsonOffsets = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    ids = {topic: topic_id for topic, topic_id in (topic_ids or {}).items() if topic in found}
    return found | {key: {} for key in topic_id_keys(ids)}


def from_json(value: Any, *, floor: int) -> Offsets:
    """Return offsets by partition by topic. Raises ValueError if the JSON is not that, or one is below `floor`."""
    if not isinstance(value, dict):
        raise ValueError('it is not of the form {"topic": {"0": 23}}')
    offsets = {}
    for topic, partitions in value.items():
        if not isinstance(partitions, dict):
            raise ValueError(f'what it says of topic {topic} is not of the form {{"0": 23}}')
        for partition, offset in partitions.items():
            if not (partition.isascii() and partition.isdigit()):
                raise ValueError(f"{partition!r} is no partition of topic {topic}: they are numbered from 0")
            if isinstance(offset, bool) or not isinstance(offset, int) or offset < floor:
                raise ValueError(f"{offset!r} cannot be used for partition {partition} of topic {topic}")
            offsets[TopicPartition(topic, int(partition))] = offset
    return offsets


def query_offsets(value: Any) -> QueryOffsets:
    """Return the offsets in a checkpoint, ours or the Kafka connector's. Raises ValueError if there are none."""
    return QueryOffsets(from_json(value, floor=0), topic_ids_among(value))


def ranges_between(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    topic_ids: Mapping[str, bytes] | None = None,
) -> list[OffsetRange]:
    """Return the range of every partition with records to read. `start` must contain each partition of `end`."""
    ids = topic_ids or {}
    found = (
        OffsetRange(partition, start[partition], offset, ids.get(partition.topic))
        for partition, offset in sorted(end.items())
    )
    return [each for each in found if each.offset_count > 0]


def split(
    ranges: Iterable[OffsetRange], *, parts_min: int | None = None, offsets_max: int | None = None
) -> list[OffsetRange]:
    """Split the ranges so that none has more than `offsets_max` offsets and there are about `parts_min` or more.

    Long ranges are split into more parts than short ones, so that the parts have similar sizes.
    """
    cut = list(ranges)
    if offsets_max is not None:
        cut = [part for each in cut for part in _cut(each, -(-each.offset_count // offsets_max))]
    if parts_min is None or not 0 < len(cut) < parts_min:
        return cut
    total = sum(each.offset_count for each in cut)
    return [part for each in cut for part in _cut(each, max(1, round(parts_min * each.offset_count / total)))]


def _cut(whole: OffsetRange, parts: int) -> Iterable[OffsetRange]:
    parts = min(parts, whole.offset_count)
    bounds = [whole.start + whole.offset_count * part // parts for part in range(parts + 1)]
    return (whole._replace(start=low, end=high) for low, high in pairwise(bounds))


def limit_offsets(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], offsets_max: int) -> Offsets:
    """Return an end at most `offsets_max` offsets after `start`, with each partition in proportion.

    The total is exactly `offsets_max` if that many are available. The largest partitions get the remainder of rounding.
    No partition starves: the offsets that it does not get now make it larger the next time.
    """
    ranges = ranges_between(start, end)
    total = sum(each.offset_count for each in ranges)
    if total <= offsets_max:
        return dict(end)
    shares = {each.partition: each.offset_count * offsets_max // total for each in ranges}
    left = offsets_max - sum(shares.values())
    for each in sorted(ranges, key=lambda each: (-each.offset_count, each.partition))[:left]:
        shares[each.partition] += 1
    return {**end, **{partition: start[partition] + share for partition, share in shares.items()}}


def limit_bytes(
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    bytes_max: int,
    record_bytes: Mapping[TopicPartition, float],
) -> Offsets:
    """Return an end about `bytes_max` bytes after `start`, based on the mean record size of each partition.

    The end is always at least one record after `start`, so that a query with large records makes progress.
    """
    ranges = ranges_between(start, end)
    total_bytes = sum(each.offset_count * record_bytes[each.partition] for each in ranges)
    if total_bytes <= bytes_max:
        return dict(end)
    part = bytes_max / total_bytes
    limited = dict(end)
    for each in ranges:
        limited[each.partition] = each.start + int(each.offset_count * part)
    if not ranges_between(start, limited):
        longest = max(ranges, key=lambda each: each.offset_count)
        limited[longest.partition] = longest.start + 1
    return limited
