"""Administration of share groups: list, describe, settings, offsets, deletion. Members are in `flowstone.queues`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flowstone.client.brokers import Brokers
from flowstone.client.coordinators import CoordinatorKind, Coordinators, check
from flowstone.client.errors import Retriable
from flowstone.client.retry_deadline import RetryDeadline
from flowstone.client.wire_session import Response
from flowstone.types import TopicPartition
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
    IncrementalAlterConfigsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)

SHARE_TYPE = "share"
GROUP_RESOURCE = 32
SET, UNSET = 0, 1
UNKNOWN = -1


class ListedShareGroup(NamedTuple):
    group: str
    state: str


class ShareMember(NamedTuple):
    member_id: str
    client_id: str
    host: str
    epoch: int
    partitions: tuple[TopicPartition, ...]


class ShareGroupDescription(NamedTuple):
    group: str
    state: str
    epoch: int
    assignment_epoch: int
    members: tuple[ShareMember, ...]


class ShareOffset(NamedTuple):
    """The start offset and lag of a share group in a partition; -1: nothing was fetched, or the lag is unknown."""

    start_offset: int
    lag: int


class ShareGroups:
    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._coordinators = Coordinators(brokers, CoordinatorKind.GROUP)

    def list_all(self, deadline: RetryDeadline) -> list[ListedShareGroup]:
        """Return the share groups of all brokers, by name."""
        found = []
        request = ListGroupsRequest(types_filter=[SHARE_TYPE])
        while True:
            try:
                self._brokers.describe([], deadline.left_s)
                for node_id in self._brokers.node_ids:
                    answer = self._brokers.ask_node(node_id, request, ListGroupsResponse, deadline.left_s)
                    check(answer.error_code, f"broker {node_id}")
                    found += [ListedShareGroup(each.group_id, each.group_state) for each in answer.groups]
                return sorted(found)
            except Retriable as error:
                found.clear()
                deadline.wait(error)

    def describe(self, group: str, deadline: RetryDeadline) -> ShareGroupDescription:
        """Return the group. Raises Refused if there is no share group of this name."""
        request = ShareGroupDescribeRequest(group_ids=[group])
        (described,) = self._ask(group, request, ShareGroupDescribeResponse, deadline, "groups").groups
        members = tuple(
            ShareMember(
                each.member_id,
                each.client_id,
                each.client_host.removeprefix("/"),
                each.member_epoch,
                tuple(
                    TopicPartition(topic.topic_name, index)
                    for topic in (each.assignment.topic_partitions if each.assignment is not None else ())
                    for index in topic.partitions
                ),
            )
            for each in described.members
        )
        return ShareGroupDescription(
            group, described.group_state, described.group_epoch, described.assignment_epoch, members
        )

    def offsets(self, group: str, deadline: RetryDeadline) -> dict[TopicPartition, ShareOffset]:
        """Return where the group is in each partition that it has state for."""
        request = DescribeShareGroupOffsetsRequest(
            groups=[DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)]
        )
        answer = self._ask(group, request, DescribeShareGroupOffsetsResponse, deadline, "groups")
        found = {}
        for topic in answer.groups[0].topics:
            for each in topic.partitions:
                check(each.error_code, f"group {group}, {topic.topic_name}-{each.partition_index}", each.error_message)
                place = TopicPartition(topic.topic_name, each.partition_index)
                found[place] = ShareOffset(each.start_offset, each.lag)
        return found

    def reset(self, group: str, offsets: Mapping[TopicPartition, int], deadline: RetryDeadline) -> None:
        """Set the offsets from which a group without members continues. Raises Refused."""
        topics: dict[str, list[AlterShareGroupOffsetsRequestPartition]] = {}
        for place, offset in offsets.items():
            topics.setdefault(place.topic, []).append(
                AlterShareGroupOffsetsRequestPartition(partition_index=place.partition, start_offset=offset)
            )
        request = AlterShareGroupOffsetsRequest(
            group_id=group,
            topics=[
                AlterShareGroupOffsetsRequestTopic(topic_name=name, partitions=each) for name, each in topics.items()
            ],
        )
        answer = self._ask(group, request, AlterShareGroupOffsetsResponse, deadline)
        for topic in answer.responses:
            for each in topic.partitions:
                check(each.error_code, f"{topic.topic_name}-{each.partition_index}", each.error_message)

    def delete(self, group: str, deadline: RetryDeadline) -> None:
        """Delete a group without members. Raises Refused."""
        self._ask(group, DeleteGroupsRequest(groups_names=[group]), DeleteGroupsResponse, deadline, "results")

    def alter(self, group: str, settings: Mapping[str, str], unset: Sequence[str], deadline: RetryDeadline) -> None:
        """Change settings of the group, whether or not it exists. Raises Refused."""
        configs = [
            IncrementalAlterConfigsRequestConfig(name=name, config_operation=SET, value=value)
            for name, value in settings.items()
        ]
        configs += [IncrementalAlterConfigsRequestConfig(name=name, config_operation=UNSET) for name in unset]
        resource = IncrementalAlterConfigsRequestResource(
            resource_type=GROUP_RESOURCE, resource_name=group, configs=configs
        )
        request = IncrementalAlterConfigsRequest(resources=[resource])
        while True:
            try:
                answer = self._brokers.ask_any(request, IncrementalAlterConfigsResponse, deadline.left_s)
                for each in answer.responses:
                    check(each.error_code, f"group {group}", each.error_message)
                return
            except Retriable as error:
                deadline.wait(error)

    def _ask(
        self, group: str, request: Message, kind: type[Response], deadline: RetryDeadline, entries: str = ""
    ) -> Response:
        """Return the coordinator's answer. Raises Refused for the error of the answer or, if named, of its entry."""
        while True:
            try:
                answer = self._coordinators.ask(group, request, kind, deadline)
                told: Any = getattr(answer, entries)[0] if entries else answer
                check(told.error_code, f"group {group}", getattr(told, "error_message", None))
                return answer
            except Retriable as error:
                self._coordinators.retry_after(group, error, deadline)
