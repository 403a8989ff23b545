"""Reads and writes a group's committed offsets without being a member of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from flowstone.client.brokers import Brokers
from flowstone.client.coordinators import CoordinatorKind, Coordinators, check
from flowstone.client.errors import Retriable
from flowstone.client.retry_deadline import RetryDeadline
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

NO_GENERATION = -1  # of a consumer outside the group's membership
NO_MEMBER = ""
NOT_COMMITTED = -1


class CommittedOffset(NamedTuple):
    offset: int
    metadata: str


class GroupOffsets:
    def __init__(self, brokers: Brokers) -> None:
        self._coordinators = Coordinators(brokers, CoordinatorKind.GROUP)

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], metadata: str, deadline: RetryDeadline) -> None:
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for partition, offset in offsets.items():
            topics.setdefault(partition.topic, []).append(
                OffsetCommitRequestPartition(
                    partition_index=partition.partition, committed_offset=offset, committed_metadata=metadata
                )
            )
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=NO_GENERATION,
            member_id=NO_MEMBER,
            topics=[OffsetCommitRequestTopic(name=name, partitions=each) for name, each in topics.items()],
        )
        while topics:  # without topics there is nothing to commit
            try:
                answer = self._coordinators.ask(group, request, OffsetCommitResponse, deadline)
                for topic in answer.topics:
                    for each in topic.partitions:
                        check(each.error_code, f"group {group}, {topic.name}-{each.partition_index}")
                return
            except Retriable as error:
                self._coordinators.retry_after(group, error, deadline)

    def committed(
        self, group: str, partitions: Iterable[TopicPartition], deadline: RetryDeadline
    ) -> dict[TopicPartition, int]:
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        if not topics:
            return {}
        wanted = [OffsetFetchRequestTopics(name=name, partition_indexes=indexes) for name, indexes in topics.items()]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=wanted)])
        return {partition: each.offset for partition, each in self._fetch(group, request, deadline).items()}

    def all_stable(self, group: str, deadline: RetryDeadline) -> dict[TopicPartition, CommittedOffset]:
        """Return every offset of the group, after waiting until no open transaction can change one."""
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)], require_stable=True)
        return self._fetch(group, request, deadline)

    def _fetch(
        self, group: str, request: OffsetFetchRequest, deadline: RetryDeadline
    ) -> dict[TopicPartition, CommittedOffset]:
        while True:
            try:
                answer = self._coordinators.ask(group, request, OffsetFetchResponse, deadline)
                return _read_committed(answer, group)
            except Retriable as error:
                self._coordinators.retry_after(group, error, deadline)


def _read_committed(answer: OffsetFetchResponse, group: str) -> dict[TopicPartition, CommittedOffset]:
    found = {}
    for part in answer.groups:
        check(part.error_code, f"group {group}")
        for topic in part.topics:
            for each in topic.partitions:
                check(each.error_code, f"group {group}, {topic.name}-{each.partition_index}")
                if each.committed_offset != NOT_COMMITTED:
                    committed = CommittedOffset(each.committed_offset, each.metadata or "")
                    found[TopicPartition(topic.name, each.partition_index)] = committed
    return found
