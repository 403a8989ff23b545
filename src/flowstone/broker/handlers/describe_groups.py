"""DescribeGroups, versions 0 to 6: show groups. An unknown one is Dead, since version 6 with an error (KIP-1043)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from flowstone.broker.coordinators.group_answers import outcome_of, settle
from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.long_responses import encode_if_long
from flowstone.cluster.decisions.acl_operations import ALL_GROUP_OPERATIONS, NOT_ASKED
from flowstone.coordinator.groups.messages import DescribedGroup
from flowstone.coordinator.runtime import Token
from flowstone.errors import ErrorCode
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeGroupsResponseGroup,
    DescribeGroupsResponseMember,
)

_UNKNOWN_GROUP_SINCE_VERSION = 6


async def handle(services: Services, context: RequestContext, request: DescribeGroupsRequest) -> Message:
    operations = ALL_GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED
    respond = partial(_respond, context.api_version, operations)
    slices = TimeSlices(services.clock.monotonic)
    asked = [(group_id, _describe(services, group_id)) async for group_id in slices.over(request.groups)]
    groups = [
        settle(await outcome_of(token), respond, _refusal(group_id)) async for group_id, token in slices.over(asked)
    ]
    elements = len(groups) + sum(len(group.members) for group in groups)
    return await encode_if_long(services, context, DescribeGroupsResponse(groups=groups), elements, slices)


def _describe(services: Services, group_id: str) -> Token:
    return services.groups.request(group_id, lambda shard, now_ms, token: shard.describe_group(now_ms, token, group_id))


def _respond(version: int, operations: int, group: DescribedGroup) -> DescribeGroupsResponseGroup:
    error, message = group.error_code, None
    if error is ErrorCode.GROUP_ID_NOT_FOUND:
        if version >= _UNKNOWN_GROUP_SINCE_VERSION:
            message = f"Group {group.group_id} not found."
        else:
            error = ErrorCode.NONE
    return DescribeGroupsResponseGroup(
        error_code=error,
        error_message=message,
        group_id=group.group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol,
        members=[
            DescribeGroupsResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in group.members
        ],
        authorized_operations=operations,
    )


def _refusal(group_id: str) -> Callable[[ErrorCode], DescribeGroupsResponseGroup]:
    return lambda code: DescribeGroupsResponseGroup(error_code=code, group_id=group_id)
