"""Commits of a member in an older epoch than its present one, which it has not learnt of yet.

Such a commit counts for partitions that the member has had since that epoch, also while it gives them up (KIP-1251).
For all others it is refused with STALE_MEMBER_EPOCH: another member may have read on from there.
"""

from __future__ import annotations

from typing import Any

from flowstone.coordinator.groups.commits import accept_offsets
from flowstone.coordinator.groups.consumer.group import ConsumerGroup
from flowstone.coordinator.groups.messages import CommitRequest, CommitResponse
from flowstone.coordinator.groups.state import Turn
from flowstone.errors import ErrorCode


def commit_outdated(turn: Turn, token: Any, request: CommitRequest) -> None:
    group = turn.shard.groups[request.group_id]
    assert isinstance(group, ConsumerGroup)
    error_code = group.check_commit(request)
    if error_code is not ErrorCode.NONE:
        turn.reply(token, CommitResponse([error_code] * len(request.offsets)))
        return
    allowed = _allowed(turn, group, request)
    part = request._replace(
        offsets=[each for each, is_allowed in zip(request.offsets, allowed, strict=True) if is_allowed]
    )
    told = iter(accept_offsets(turn, part))
    turn.effects.can_wait = True
    turn.reply(token, CommitResponse([next(told) if each else ErrorCode.STALE_MEMBER_EPOCH for each in allowed]))


def may_commit_all(turn: Turn, group: ConsumerGroup, request: CommitRequest) -> bool:
    """Return whether the member has had all partitions of the request since the request's epoch."""
    return all(_allowed(turn, group, request))


def _allowed(turn: Turn, group: ConsumerGroup, request: CommitRequest) -> list[bool]:
    topics = {name: turn.shard.topics.find(name) for name, *_ in request.offsets}
    found = []
    for name, index, *_ in request.offsets:
        topic = topics[name]
        partition = (topic.topic_id if topic is not None else b"", index)
        found.append(group.may_commit(request.member_id, request.generation_id, partition))
    return found
