"""ListGroups, DescribeGroups and DeleteGroups: the requests of operators.

A group with offsets of an open transaction is not deleted: the transaction would be committed without them. (Kafka
deletes it.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flowstone.coordinator.groups.messages import (
    DEAD,
    DeleteGroupsResponse,
    DescribedGroup,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from flowstone.coordinator.groups.records import OffsetRemoved
from flowstone.coordinator.groups.state import Turn
from flowstone.errors import ErrorCode


def list_groups(turn: Turn, token: Any, request: ListGroupsRequest) -> None:
    states = {state.lower() for state in request.states}
    types = {type_.lower() for type_ in request.types}
    listed = (
        ListedGroup(group.group_id, group.protocol_type_name, group.state_name, group.type)
        for group in turn.shard.groups.values()
        if (not types or group.type in types) and (not states or group.state_name.lower() in states)
    )
    turn.reply(token, ListGroupsResponse(tuple(listed)))


def describe(turn: Turn, token: Any, group_id: str) -> None:
    group = turn.shard.groups.get(group_id)
    if group is None:
        turn.reply(token, DescribedGroup(group_id, DEAD, ErrorCode.GROUP_ID_NOT_FOUND))
    else:
        turn.reply(token, group.described())


def delete_groups(turn: Turn, token: Any, group_ids: Iterable[str]) -> None:
    errors = {}
    for group_id in dict.fromkeys(group_ids):
        group = turn.shard.groups.get(group_id)
        if group is None:
            errors[group_id] = ErrorCode.GROUP_ID_NOT_FOUND
        elif not group.is_empty or turn.shard.pending.of_group(group_id):
            errors[group_id] = ErrorCode.NON_EMPTY_GROUP
        else:
            errors[group_id] = ErrorCode.NONE
            for topic, partition in turn.shard.offsets.of_group(group_id):
                turn.append(OffsetRemoved(group_id, topic, partition))
            for record in group.removal():
                turn.append(record)
    turn.reply(token, DeleteGroupsResponse(errors))
