"""Reader of consumer groups over Kafka's protocol, completed with data from the broker's own page.

Works with every broker that supports the protocol; `GroupPages` reports what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Annotated, Any

import typer
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
)
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription, OffsetSpec  # type: ignore[attr-defined]

from flowstone.broker.lag.group_status import CLASSIC, CONSUMER, GroupMember, GroupStatus, PartitionLag
from flowstone.cli.common.clients import REQUEST_TIMEOUT_S, explain, result_of
from flowstone.cli.common.errors import CommandError
from flowstone.cli.group.pages import GroupPages
from flowstone.types import TopicPartition

_STATES = {
    ConsumerGroupState.STABLE: "Stable",
    ConsumerGroupState.EMPTY: "Empty",
    ConsumerGroupState.DEAD: "Dead",
    ConsumerGroupState.PREPARING_REBALANCING: "PreparingRebalance",
    ConsumerGroupState.COMPLETING_REBALANCING: "CompletingRebalance",
}
UNKNOWN_STATE = "Unknown"

GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.")]

Bounds = dict[TopicPartition, tuple[int, int]]


class GroupReader:
    def __init__(self, admin: AdminClient, bootstrap: str) -> None:
        self._admin, self._bootstrap = admin, bootstrap
        self._pages = GroupPages(admin, bootstrap)

    @property
    def problem(self) -> str | None:
        """Return why lag in seconds and headroom are unknown, as the rest of a sentence; None if they are known."""
        return self._pages.problem

    def names(self) -> list[str]:
        listed = result_of(self._admin.list_consumer_groups(request_timeout=REQUEST_TIMEOUT_S), self._bootstrap)
        if listed.errors:
            raise explain(listed.errors[0], self._bootstrap)
        return sorted(each.group_id for each in listed.valid)

    def read_all(self) -> list[GroupStatus]:
        """Return all groups by name, without groups that were deleted while they were read."""
        return self._read(self.names())

    def read(self, group_id: str) -> GroupStatus:
        """Return the group. Raises CommandError if it does not exist."""
        found = self._read([group_id])
        if found:
            return found[0]
        from flowstone.config import nearest

        raise CommandError(
            f"there is no group {group_id}{nearest(group_id, self.names()) or '; see `flowstone group list`'}"
        )

    def find(self, group_id: str) -> GroupStatus | None:
        """Return the group, read over the protocol only, or None if it does not exist."""
        return next(iter(self._read_protocol([group_id])), None)

    def bounds(self, partitions: Iterable[TopicPartition]) -> Bounds:
        """Return the first offset and the end offset of each partition."""
        wanted = list(partitions)
        first = self.offsets(wanted, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        after = self.offsets(wanted, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        return {each: (first[each], after[each]) for each in wanted if each in first and each in after}

    def offsets(self, partitions: Iterable[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
        """Return the offsets that `spec` selects, without partitions that do not exist."""
        asked = {ClientPartition(*each): spec for each in partitions}
        if not asked:
            return {}
        answers = self._admin.list_offsets(asked, request_timeout=REQUEST_TIMEOUT_S)
        found = {}
        for each, future in answers.items():
            answer = _result_or_none(future, self._bootstrap, KafkaError.UNKNOWN_TOPIC_OR_PART)
            if answer is not None:
                found[TopicPartition(each.topic, each.partition)] = answer.offset
        return found

    def _read(self, group_ids: list[str]) -> list[GroupStatus]:
        groups = self._read_protocol(group_ids)
        if not groups and len(group_ids) == 1:  # librdkafka describes no share groups
            return self._pages.share_group(group_ids[0])
        return self._pages.complete(groups) if groups else []

    def _read_protocol(self, group_ids: list[str]) -> list[GroupStatus]:
        if not group_ids:
            return []
        described = self._admin.describe_consumer_groups(group_ids, request_timeout=REQUEST_TIMEOUT_S)
        fetched = {
            each: self._admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(each)], request_timeout=REQUEST_TIMEOUT_S
            )[each]
            for each in group_ids
        }
        found: list[tuple[ConsumerGroupDescription, dict[TopicPartition, int]]] = []
        for group_id in group_ids:
            group = _result_or_none(described[group_id], self._bootstrap, KafkaError.GROUP_ID_NOT_FOUND)
            offsets = result_of(fetched[group_id], self._bootstrap).topic_partitions
            if group is not None and (group.state is not ConsumerGroupState.DEAD or offsets):
                committed = {TopicPartition(each.topic, each.partition): each.offset for each in offsets}
                found.append((group, committed))
        assigned = {each for group, _ in found for member in group.members for each in _assigned(member)}
        bounds = self.bounds(sorted(assigned.union(*(committed for _, committed in found))))
        return [_status(group, committed, bounds) for group, committed in found]


def _status(group: ConsumerGroupDescription, committed: dict[TopicPartition, int], bounds: Bounds) -> GroupStatus:
    members = tuple(
        GroupMember(each.member_id, each.group_instance_id, each.client_id, each.host, _assigned(each))
        for each in group.members
    )
    owners = {partition: member.member_id for member in members for partition in member.partitions}
    partitions = sorted(each for each in committed.keys() | owners.keys() if each in bounds)
    return GroupStatus(
        group_id=group.group_id,
        state=next((name for state, name in _STATES.items() if state is group.state), UNKNOWN_STATE),
        protocol_type="" if group.is_simple_consumer_group else "consumer",
        protocol=group.partition_assignor,
        generation=-1,
        topics=(),
        members=members,
        partitions=tuple(_lag(each, committed.get(each), bounds[each], owners.get(each)) for each in partitions),
        rebalance_count=0,
        rebalance_reason="",
        rebalance_timestamp_ms=-1,
        type=CONSUMER if group.type is ConsumerGroupType.CONSUMER else CLASSIC,
    )


def _lag(where: TopicPartition, committed: int | None, bounds: tuple[int, int], owner: str | None) -> PartitionLag:
    first, end = bounds
    return PartitionLag(
        topic=where.topic,
        partition=where.partition,
        committed_offset=committed,
        log_start_offset=first,
        high_watermark=end,
        lag=max(end - committed, 0) if committed is not None else None,
        lost=max(first - committed, 0) if committed is not None else 0,
        lag_seconds=None,
        headroom_seconds=None,
        member_id=owner,
    )


def _assigned(member: Any) -> tuple[TopicPartition, ...]:
    return tuple(sorted(TopicPartition(each.topic, each.partition) for each in member.assignment.topic_partitions))


def _result_or_none(future: Future[Any], bootstrap: str, missing: int) -> Any:
    """Return the result of a request, or None if the broker answers with the error `missing`."""
    try:
        return future.result()
    except KafkaException as error:
        if error.args[0].code() == missing:
            return None
        raise explain(error, bootstrap) from None
