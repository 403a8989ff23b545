"""ListGroups, DescribeGroups and DeleteGroups: what operators see and do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flowstone.coordinator.groups.classic.group import Group, GroupState, Member
from flowstone.coordinator.groups.messages import (
    CLASSIC,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedMember,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from flowstone.coordinator.groups.records import GroupRemoved, OffsetRemoved
from flowstone.coordinator.groups.state import Turn
from flowstone.errors import ErrorCode


def list_groups(turn: Turn, token: Any, request: ListGroupsRequest) -> None:
    states = {state.lower() for state in request.states}
    types = {type_.lower() for type_ in request.types}
    groups: Iterable[Group] = turn.shard.groups.values() if not types or CLASSIC in types else ()
    listed = (
        ListedGroup(group.group_id, group.protocol_type or "", group.state.value)
        for group in groups
        if not states or group.state.value.lower() in states
    )
    turn.reply(token, ListGroupsResponse(tuple(listed)))


def describe(turn: Turn, token: Any, group_id: str) -> None:
    group = turn.shard.groups.get(group_id)
    if group is None:
        turn.reply(token, DescribedGroup(group_id, GroupState.DEAD.value, ErrorCode.GROUP_ID_NOT_FOUND))
        return
    # Until the group is settled the members' metadata belongs to a choice of protocol that is not made yet.
    protocol = group.protocol if group.state is GroupState.STABLE else None
    described = DescribedGroup(
        group_id,
        group.state.value,
        protocol_type=group.protocol_type or "",
        protocol=protocol or "",
        generation=group.generation,
        members=tuple(_described(member, protocol) for member in group.members.values()),
        rebalance_count=group.rebalance_count,
        rebalance_reason=group.rebalance_reason,
        rebalance_timestamp_ms=group.rebalance_timestamp_ms,
    )
    turn.reply(token, described)


def _described(member: Member, protocol: str | None) -> DescribedMember:
    return DescribedMember(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        member.protocols[protocol] if protocol is not None else b"",
        member.assignment,
    )


def delete_groups(turn: Turn, token: Any, group_ids: Iterable[str]) -> None:
    errors = {}
    for group_id in dict.fromkeys(group_ids):
        group = turn.shard.groups.get(group_id)
        if group is None:
            errors[group_id] = ErrorCode.GROUP_ID_NOT_FOUND
        elif group.state is not GroupState.EMPTY:
            errors[group_id] = ErrorCode.NON_EMPTY_GROUP
        else:
            errors[group_id] = ErrorCode.NONE
            for topic, partition in turn.shard.offsets.of_group(group_id):
                turn.append(OffsetRemoved(group_id, topic, partition))
            turn.append(GroupRemoved(group_id))
    turn.reply(token, DeleteGroupsResponse(errors))
