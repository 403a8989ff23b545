"""Expensive requests of the versions that name topics by id, or several groups: cases by name do little there."""

from __future__ import annotations

from collections.abc import Iterator

from flowstone.wire import messages as m
from tests.hostile.worst_case import WIDE, Case, topic_id

WIDE_PARTITIONS = 1000


def id_cases() -> Iterator[Case]:
    for version in (8, 10):
        yield Case("OffsetFetch of a group's partitions", version, lambda n: _fetch_offsets([(WIDE, _wide(n))]))
        yield Case("OffsetFetch of a group's topics", version, lambda n: _fetch_offsets([(x, [0]) for x in _names(n)]))
    yield Case(
        "DeleteTopics by id",
        6,
        lambda n: m.DeleteTopicsRequest(
            topics=[m.DeleteTopicsRequestTopic(name=None, topic_id=topic_id(name)) for name in _names(n)],
            timeout_ms=60_000,
        ),
    )


def _names(count: int) -> list[str]:
    return [f"n{index}" for index in range(count)]


def _wide(count: int) -> list[int]:
    return [index % WIDE_PARTITIONS for index in range(count)]


def _fetch_offsets(topics: list[tuple[str, list[int]]]) -> m.OffsetFetchRequest:
    wanted = [
        m.OffsetFetchRequestTopics(name=name, topic_id=topic_id(name), partition_indexes=indexes)
        for name, indexes in topics
    ]
    return m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group_id="group", topics=wanted)])
