"""ShareGroupDescribe, version 1: show share groups with their members and what those fetch from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from flowstone.broker.coordinators.group_answers import outcome_of, settle
from flowstone.broker.handlers.share.share_feature import check_share_groups
from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.long_responses import encode_if_long
from flowstone.cluster.decisions.acl_operations import ALL_GROUP_OPERATIONS, NOT_ASKED
from flowstone.coordinator.groups.share.messages import ASSIGNOR_NAME, DescribedShareGroup, DescribedShareMember
from flowstone.coordinator.runtime import Token
from flowstone.errors import ErrorCode
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupDescribeResponseAssignment,
    ShareGroupDescribeResponseGroup,
    ShareGroupDescribeResponseMember,
    ShareGroupDescribeResponseTopicPartitions,
)


async def handle(services: Services, context: RequestContext, request: ShareGroupDescribeRequest) -> Message:
    check_share_groups(services)
    operations = ALL_GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED
    respond = partial(_respond, operations)
    slices = TimeSlices(services.clock.monotonic)
    asked = [(group_id, _describe(services, group_id)) async for group_id in slices.over(request.group_ids)]
    groups = [
        settle(await outcome_of(token), respond, _refusal(group_id)) async for group_id, token in slices.over(asked)
    ]
    elements = len(groups) + sum(len(group.members) for group in groups)
    return await encode_if_long(services, context, ShareGroupDescribeResponse(groups=groups), elements, slices)


def _describe(services: Services, group_id: str) -> Token:
    return services.groups.request(
        group_id, lambda shard, now_ms, token: shard.describe_share_group(now_ms, token, group_id)
    )


def _respond(operations: int, group: DescribedShareGroup) -> ShareGroupDescribeResponseGroup:
    if group.error_code is not ErrorCode.NONE:
        return _refusal(group.group_id)(group.error_code)
    return ShareGroupDescribeResponseGroup(
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=ASSIGNOR_NAME,
        members=[_member(member) for member in group.members],
        authorized_operations=operations,
    )


def _member(member: DescribedShareMember) -> ShareGroupDescribeResponseMember:
    return ShareGroupDescribeResponseMember(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.subscribed_topics,
        assignment=ShareGroupDescribeResponseAssignment(
            topic_partitions=[
                ShareGroupDescribeResponseTopicPartitions(topic_id=topic_id, topic_name=name, partitions=partitions)
                for topic_id, name, partitions in member.assignment
            ]
        ),
    )


def _refusal(group_id: str) -> Callable[[ErrorCode], ShareGroupDescribeResponseGroup]:
    def refuse(code: ErrorCode) -> ShareGroupDescribeResponseGroup:
        message = f"Group {group_id} not found." if code is ErrorCode.GROUP_ID_NOT_FOUND else None
        return ShareGroupDescribeResponseGroup(error_code=code, error_message=message, group_id=group_id)

    return refuse
