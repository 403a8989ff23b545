"""JoinGroup: admission of members, their ids, and whether a join starts a rebalance.

- A dynamic member without an id is given one and must join again with it (KIP-394), so that a client which gives up
  and retries leaves no dead member behind.
- A static member (KIP-345) without a member id replaces the member with its instance id, which is fenced. In a
  Stable group this needs no rebalance as long as the protocol and the topics stay the same, and the replaced member was
  not about to revoke partitions. (Kafka compares the protocol alone. It misses a static member that comes back with
  another subscription, and leaves a partition unassigned when its former owner dies during a cooperative revocation.)
- A join of a known member takes part in the rebalance under way, or starts one if it is of the leader or its metadata
  has changed. With the same metadata in a Stable group the member missed its answer, and gets the current generation.
"""

from __future__ import annotations

from typing import Any

from flowstone.coordinator.groups.classic.group import Group, GroupState
from flowstone.coordinator.groups.classic.member import Member, member_bytes
from flowstone.coordinator.groups.classic.rebalancing import (
    answer_join,
    answer_sync,
    complete_join_if_ready,
    find,
    joined,
    park_join,
    rebalance,
    remove_member,
    remove_pending,
)
from flowstone.coordinator.groups.config import (
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    PENDING_MEMBERS_MAX,
    TEXT_CHARACTER_BYTES,
)
from flowstone.coordinator.groups.messages import UNKNOWN_MEMBER_ID, JoinRequest, JoinResponse, SyncResponse
from flowstone.coordinator.groups.state import Turn
from flowstone.coordinator.groups.timers import TimerKind
from flowstone.errors import ErrorCode


def join(turn: Turn, token: Any, request: JoinRequest) -> None:
    config, member_id = turn.shard.config, request.member_id
    group = find(turn, request.group_id)
    if not request.group_id:
        turn.reply(token, JoinResponse(ErrorCode.INVALID_GROUP_ID, member_id))
    elif not config.session_timeout_min_ms <= request.session_timeout_ms <= config.session_timeout_max_ms:
        turn.reply(token, JoinResponse(ErrorCode.INVALID_SESSION_TIMEOUT, member_id))
    elif group is None and member_id != UNKNOWN_MEMBER_ID:
        turn.reply(token, JoinResponse(ErrorCode.UNKNOWN_MEMBER_ID, member_id))
    elif not _fits(turn, group := group or Group(request.group_id), request):
        _turn_away(turn, group, request, token)
    elif not group.supports(request.protocol_type, dict(request.protocols)):
        turn.reply(token, JoinResponse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id))
    elif member_id != UNKNOWN_MEMBER_ID:
        _join_known(turn, group, request, token)
    else:
        # A new group is stored only now: refused joins must not fill the memory.
        turn.shard.groups[request.group_id] = group
        _join_unknown(turn, group, request, token)


def _fits(turn: Turn, group: Group, request: JoinRequest) -> bool:
    """Return whether the group's size and the memory left for all groups allow the join.

    While members join again, those who have done so count: the last to come are those who do not fit. An instance that
    comes back takes its own former place.
    """
    member_id, instance_id = request.member_id, request.group_instance_id
    if member_id == UNKNOWN_MEMBER_ID and instance_id is not None:
        member_id = group.static_members.get(instance_id, member_id)
    counted = group.joins if group.state is GroupState.PREPARING_REBALANCE else group.members
    if member_id not in counted and len(counted) >= turn.shard.config.group_max_size:
        return False
    wanted_bytes = member_bytes(request.client_id, request.client_host, instance_id, dict(request.protocols))
    known = group.members.get(member_id)
    if known is not None:
        wanted_bytes += TEXT_CHARACTER_BYTES * len(member_id) + len(known.assignment) - known.counted_bytes
    if group.group_id not in turn.shard.groups:
        wanted_bytes += group.size_bytes
    return wanted_bytes <= 0 or turn.shard.account.may_grow(group.group_id, wanted_bytes)


def _turn_away(turn: Turn, group: Group, request: JoinRequest, token: Any) -> None:
    turn.reply(token, JoinResponse(ErrorCode.GROUP_MAX_SIZE_REACHED))
    if request.member_id in group.pending_joins:
        remove_pending(turn, group, request.member_id)
    elif group.check_member(request.member_id, request.group_instance_id) is ErrorCode.NONE:
        remove_member(turn, group, request.member_id)
    complete_join_if_ready(turn, group)


def _join_unknown(turn: Turn, group: Group, request: JoinRequest, token: Any) -> None:
    instance_id = request.group_instance_id
    if instance_id is not None and instance_id in group.static_members:
        _replace_static(turn, group, request, token)
    elif instance_id is None and request.member_id_required:
        _hand_out_member_id(turn, group, request, token)
    else:
        prefix = request.client_id if instance_id is None else instance_id
        _add(turn, group, request, token, turn.shard.new_member_id(prefix))


def _hand_out_member_id(turn: Turn, group: Group, request: JoinRequest, token: Any) -> None:
    if len(group.pending_joins) >= PENDING_MEMBERS_MAX:
        turn.reply(token, JoinResponse(ErrorCode.GROUP_MAX_SIZE_REACHED))
        return
    member_id = turn.shard.new_member_id(request.client_id)
    group.add_pending(member_id)
    turn.schedule(request.session_timeout_ms, TimerKind.SESSION, group, member_id)
    turn.reply(token, JoinResponse(ErrorCode.MEMBER_ID_REQUIRED, member_id))


def _join_known(turn: Turn, group: Group, request: JoinRequest, token: Any) -> None:
    member_id = request.member_id
    if member_id in group.pending_joins and request.group_instance_id is None:
        _add(turn, group, request, token, member_id)
        return
    error_code = group.check_member(member_id, request.group_instance_id)
    if error_code is not ErrorCode.NONE:
        turn.reply(token, JoinResponse(error_code, member_id))
        return
    member = group.members[member_id]
    is_unchanged = list(member.protocols.items()) == list(dict(request.protocols).items())
    # A leader that joins a Stable group requests a new assignment, for example because topics have changed.
    missed_its_answer = is_unchanged and (
        group.state is GroupState.COMPLETING_REBALANCE
        or (group.state is GroupState.STABLE and member_id != group.leader)
    )
    if missed_its_answer:
        turn.reply(token, joined(group, member_id))
    else:
        _update(group, member, request)
        park_join(turn, group, member_id, token)
        who = "Leader" if member_id == group.leader else "Member"
        rebalance(turn, group, f"{who} {member_id} joined again while {group.state.value}", request.reason)


def _add(turn: Turn, group: Group, request: JoinRequest, token: Any, member_id: str) -> None:
    member = Member(
        member_id,
        request.group_instance_id,
        request.client_id,
        request.client_host,
        request.session_timeout_ms,
        request.rebalance_timeout_ms,
        dict(request.protocols),
        is_new=True,
    )
    group.add(member, request.protocol_type)
    group.joined_during_delay = True
    park_join(turn, group, member_id, token)
    turn.schedule(NEW_MEMBER_JOIN_TIMEOUT_MS, TimerKind.SESSION, group, member_id)
    rebalance(turn, group, f"Member {member_id} joined", request.reason)


def _replace_static(turn: Turn, group: Group, request: JoinRequest, token: Any) -> None:
    assert request.group_instance_id is not None
    old_member_id = group.static_members[request.group_instance_id]
    answer_join(turn, group, old_member_id, JoinResponse(ErrorCode.FENCED_INSTANCE_ID, old_member_id))
    answer_sync(turn, group, old_member_id, SyncResponse(ErrorCode.FENCED_INSTANCE_ID))
    turn.cancel(TimerKind.SESSION, group, old_member_id)
    old_leader = group.leader
    member_id = turn.shard.new_member_id(request.group_instance_id)
    member = group.rename_static_member(old_member_id, member_id)
    member.is_new = False
    old_topics = group.topics_of(member.protocols)
    was_giving_up = group.is_giving_up(member)
    _update(group, member, request)
    turn.keep_session(group, member_id)
    is_settled = (
        group.state is GroupState.STABLE
        and not was_giving_up
        and group.select_protocol() == group.protocol
        and group.topics_of(member.protocols) == old_topics
    )
    if is_settled:
        assignments = {each.member_id: each.assignment for each in group.members.values()}
        turn.append(group.stored(turn.now_ms, assignments))
        turn.reply(token, _rejoined(group, request, member_id, old_leader or ""))
    else:
        park_join(turn, group, member_id, token)
        rebalance(turn, group, f"Static member {request.group_instance_id} joined as {member_id}", request.reason)


def _rejoined(group: Group, request: JoinRequest, member_id: str, old_leader: str) -> JoinResponse:
    # The assignment must stay. Since version 9 a leader can be told so (KIP-814); an older one must not learn that it
    # leads, so its response names the leader by the member id that was replaced.
    response = joined(group, member_id)
    if request.skip_assignment_supported:
        return response._replace(skip_assignment=member_id == group.leader)
    return response._replace(leader=old_leader, members=())


def _update(group: Group, member: Member, request: JoinRequest) -> None:
    member.client_id = request.client_id
    member.client_host = request.client_host
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    member.protocols = dict(request.protocols)
    group.count(member)
