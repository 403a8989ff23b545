"""ConsumerGroupDescribe, versions 0 and 1: show consumer groups; groups of other kinds are not found.

Since version 1 each member has the protocol that it uses. Partitions of deleted topics are omitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from flowstone.broker.coordinators.group_answers import outcome_of, settle
from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.long_responses import encode_if_long
from flowstone.cluster.decisions.acl_operations import ALL_GROUP_OPERATIONS, NOT_ASKED
from flowstone.coordinator.groups.consumer.messages import ConsumerGroupDescribed, ConsumerMemberDescribed
from flowstone.coordinator.groups.consumer_records import Partition
from flowstone.coordinator.runtime import Token
from flowstone.errors import ErrorCode
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupDescribeResponseAssignment,
    ConsumerGroupDescribeResponseGroup,
    ConsumerGroupDescribeResponseMember,
    ConsumerGroupDescribeResponseTopicPartitions,
)

_CLASSIC, _CONSUMER = 0, 1


async def handle(services: Services, context: RequestContext, request: ConsumerGroupDescribeRequest) -> Message:
    operations = ALL_GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED
    slices = TimeSlices(services.clock.monotonic)
    group_ids = dict.fromkeys(request.group_ids)
    asked = [(group_id, _describe(services, group_id)) async for group_id in slices.over(group_ids)]
    groups = [
        settle(await outcome_of(token), lambda group: _respond(operations, group), _refusal(group_id))
        async for group_id, token in slices.over(asked)
    ]
    elements = len(groups) + sum(len(group.members) for group in groups)
    return await encode_if_long(services, context, ConsumerGroupDescribeResponse(groups=groups), elements, slices)


def _describe(services: Services, group_id: str) -> Token:
    return services.groups.request(
        group_id, lambda shard, now_ms, token: shard.describe_consumer_group(now_ms, token, group_id)
    )


def _respond(operations: int, group: ConsumerGroupDescribed) -> ConsumerGroupDescribeResponseGroup:
    return ConsumerGroupDescribeResponseGroup(
        error_code=group.error_code,
        error_message=group.message,
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor,
        members=[_member(group.names, member) for member in group.members],
        authorized_operations=operations,
    )


def _member(names: Mapping[bytes, str], member: ConsumerMemberDescribed) -> ConsumerGroupDescribeResponseMember:
    return ConsumerGroupDescribeResponseMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.subscribed_topics),
        subscribed_topic_regex=member.regex,
        assignment=_assignment(names, member.assigned),
        target_assignment=_assignment(names, member.target),
        member_type=_CLASSIC if member.is_classic else _CONSUMER,
    )


def _assignment(names: Mapping[bytes, str], partitions: Iterable[Partition]) -> ConsumerGroupDescribeResponseAssignment:
    by_topic: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(partitions):
        if topic_id in names:
            by_topic.setdefault(topic_id, []).append(index)
    return ConsumerGroupDescribeResponseAssignment(
        topic_partitions=[
            ConsumerGroupDescribeResponseTopicPartitions(
                topic_id=topic_id, topic_name=names[topic_id], partitions=indexes
            )
            for topic_id, indexes in by_topic.items()
        ]
    )


def _refusal(group_id: str) -> Callable[[ErrorCode], ConsumerGroupDescribeResponseGroup]:
    return lambda code: ConsumerGroupDescribeResponseGroup(error_code=code, group_id=group_id)
