"""Reads and writes a group's committed offsets without being a member of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flowstone.client.brokers import Brokers
from flowstone.client.connection import Address
from flowstone.client.errors import Disconnected, LeaderMoved, Retriable, refusal
from flowstone.client.retry_deadline import RetryDeadline
from flowstone.client.wire_session import Response
from flowstone.types import TopicPartition
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
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
_GROUP_KEY = 0


class GroupOffsets:
    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._coordinators: dict[str, Address] = {}

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
                answer = self._ask(group, request, OffsetCommitResponse, deadline)
                for topic in answer.topics:
                    for each in topic.partitions:
                        _check(each.error_code, f"group {group}, {topic.name}-{each.partition_index}")
                return
            except Retriable as error:
                self._failed(group, error, deadline)

    def committed(
        self, group: str, partitions: Iterable[TopicPartition], deadline: RetryDeadline
    ) -> dict[TopicPartition, int]:
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        wanted = [OffsetFetchRequestTopics(name=name, partition_indexes=indexes) for name, indexes in topics.items()]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=wanted)])
        while topics:
            try:
                answer = self._ask(group, request, OffsetFetchResponse, deadline)
                return _read_committed(answer, group)
            except Retriable as error:
                self._failed(group, error, deadline)
        return {}

    def _ask(self, group: str, request: Message, kind: type[Response], deadline: RetryDeadline) -> Response:
        coordinator = self._coordinators.get(group)
        if coordinator is None:
            coordinator = self._coordinators[group] = self._find(group, deadline)
        return self._brokers.ask(coordinator, request, kind, deadline.left_s)

    def _find(self, group: str, deadline: RetryDeadline) -> Address:
        request = FindCoordinatorRequest(key_type=_GROUP_KEY, coordinator_keys=[group])
        for found in self._brokers.ask_any(request, FindCoordinatorResponse, deadline.left_s).coordinators:
            _check(found.error_code, f"group {group}", found.error_message)
            return Address(found.host, found.port)
        raise Retriable(f"nobody coordinates group {group} for now")

    def _failed(self, group: str, error: Retriable, deadline: RetryDeadline) -> None:
        if isinstance(error, LeaderMoved | Disconnected):
            self._coordinators.pop(group, None)
        deadline.wait(error)


def _read_committed(answer: OffsetFetchResponse, group: str) -> dict[TopicPartition, int]:
    found = {}
    for part in answer.groups:
        _check(part.error_code, f"group {group}")
        for topic in part.topics:
            for each in topic.partitions:
                _check(each.error_code, f"group {group}, {topic.name}-{each.partition_index}")
                if each.committed_offset != NOT_COMMITTED:
                    found[TopicPartition(topic.name, each.partition_index)] = each.committed_offset
    return found


def _check(code: int, what: str, message: str | None = None) -> None:
    if code:
        raise refusal(code, what, message)
