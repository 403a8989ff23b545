"""OffsetCommit, OffsetFetch and OffsetDelete, and the rules of who may commit.

While a group has members, only they may commit, each in the current generation: a fenced member cannot. A group without
members accepts any commit without a generation: those of stand-alone consumers and operators.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from flowstone.coordinator.groups.config import GROUP_OVERHEAD_BYTES, OFFSET_OVERHEAD_BYTES, TEXT_CHARACTER_BYTES
from flowstone.coordinator.groups.group import AnyGroup
from flowstone.coordinator.groups.messages import (
    NO_RETENTION_TIME,
    CommitRequest,
    CommitResponse,
    CommittedOffset,
    DeleteOffsetsRequest,
    DeleteOffsetsResponse,
    FetchOffsetsRequest,
    FetchOffsetsResponse,
)
from flowstone.coordinator.groups.records import NO_TIMESTAMP, OffsetCommitted, OffsetRemoved
from flowstone.coordinator.groups.state import Turn
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition

_NOT_COMMITTED = CommittedOffset()
_UNSTABLE = CommittedOffset(error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT)
# Creates one from a tuple of its fields: most of the constructor's time is that it is a Python function.
_new_committed = partial(tuple.__new__, OffsetCommitted)


def commit(turn: Turn, token: Any, request: CommitRequest) -> None:
    group = turn.shard.groups.get(request.group_id)
    error_code = _check_commit(group, request)
    if error_code is not ErrorCode.NONE:
        turn.reply(token, CommitResponse([error_code] * len(request.offsets)))
        return
    if not _has_memory(turn, request):
        turn.reply(token, CommitResponse([ErrorCode.INVALID_COMMIT_OFFSET_SIZE] * len(request.offsets)))
        return
    errors = accept_offsets(turn, request)
    if group is not None and request.member_id in group.members:
        turn.keep_session(group, request.member_id)
    turn.effects.can_wait = True
    turn.reply(token, CommitResponse(errors))


def accept_offsets(turn: Turn, request: CommitRequest) -> list[ErrorCode]:
    """Append the records of all offsets that can be stored, and return a code for each offset of the request."""
    group_id, now_ms = request.group_id, turn.now_ms
    errors: list[ErrorCode] = [ErrorCode.NONE] * len(request.offsets)
    accepted: dict[tuple[str, int], OffsetCommitted] = {}  # for a partition named twice, the last one
    expire_timestamp_ms = NO_TIMESTAMP
    if request.retention_time_ms != NO_RETENTION_TIME:
        expire_timestamp_ms = now_ms + request.retention_time_ms
    new_committed = _new_committed
    metadata_length_max = turn.shard.config.offset_metadata_max_bytes  # Kafka counts characters, whatever the name says
    for at, (topic, partition, offset, leader_epoch, metadata) in enumerate(request.offsets):
        if metadata and len(metadata) > metadata_length_max:
            errors[at] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            continue
        accepted[topic, partition] = new_committed(
            (group_id, topic, partition, offset, leader_epoch, metadata or "", now_ms, expire_timestamp_ms)
        )
    turn.effects.records.extend(accepted.values())
    return errors


def _has_memory(turn: Turn, request: CommitRequest) -> bool:
    """Return whether all groups together leave enough memory for what this commit adds to its group."""
    account, group_id = turn.shard.account, request.group_id
    new_group_bytes = GROUP_OVERHEAD_BYTES + TEXT_CHARACTER_BYTES * len(group_id)
    metadata_length_max = turn.shard.config.offset_metadata_max_bytes
    most_bytes = OFFSET_OVERHEAD_BYTES + TEXT_CHARACTER_BYTES * metadata_length_max
    if account.could_grow(group_id, new_group_bytes + most_bytes * len(request.offsets)):
        return True  # the common case; computing what the commit really adds takes longer
    known = turn.shard.offsets.of_group(group_id)
    growth_bytes = 0 if group_id in turn.shard.groups else new_group_bytes
    for topic, partition, _, _, metadata in request.offsets:
        before = known.get((topic, partition))
        length = len(metadata or "")
        if length > metadata_length_max:
            continue
        if before is None:
            growth_bytes += OFFSET_OVERHEAD_BYTES + TEXT_CHARACTER_BYTES * length
        else:
            growth_bytes += TEXT_CHARACTER_BYTES * (length - len(before.metadata))
    return account.may_grow(group_id, growth_bytes)


def _check_commit(group: AnyGroup | None, request: CommitRequest) -> ErrorCode:
    if group is not None:
        return group.check_commit(request)
    return ErrorCode.GROUP_ID_NOT_FOUND if request.generation_id >= 0 else ErrorCode.NONE


def fetch(turn: Turn, token: Any, request: FetchOffsetsRequest) -> None:
    committed = turn.shard.offsets.of_group(request.group_id)
    pending = turn.shard.pending.of_group(request.group_id) if request.require_stable else ()
    wanted: Iterable[TopicPartition] | None = request.partitions
    if wanted is None:
        wanted = (TopicPartition(*place) for place in dict.fromkeys((*committed, *pending)))
    offsets = {}
    for partition in wanted:
        record = committed.get(partition)
        offsets[partition] = (
            CommittedOffset(record.offset, record.leader_epoch, record.metadata) if record else _NOT_COMMITTED
        )
    for partition in offsets.keys() & pending if pending else ():
        offsets[partition] = _UNSTABLE
    told = turn.shard.pending.newest_of(request.group_id) if request.with_pending else {}
    turn.reply(token, FetchOffsetsResponse(request.group_id, offsets, pending=told))


def offsets_in(turn: Turn, token: Any, partition: TopicPartition) -> None:
    """Reply with the committed offsets of every group in one partition."""
    offsets = turn.shard.offsets
    turn.reply(token, {each: offsets.of_group(each)[partition].offset for each in offsets.group_ids_with(partition)})


def delete(turn: Turn, token: Any, request: DeleteOffsetsRequest) -> None:
    group = turn.shard.groups.get(request.group_id)
    if group is None:
        turn.reply(token, DeleteOffsetsResponse(ErrorCode.GROUP_ID_NOT_FOUND))
        return
    if not group.has_deletable_offsets:
        turn.reply(token, DeleteOffsetsResponse(ErrorCode.NON_EMPTY_GROUP))
        return
    committed = turn.shard.offsets.of_group(request.group_id)
    pending = turn.shard.pending.of_group(request.group_id)
    errors = {}
    for partition in dict.fromkeys(request.partitions):
        if group.is_subscribed_to(partition.topic):
            errors[partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            continue
        errors[partition] = ErrorCode.NONE
        if partition in committed or partition in pending:
            turn.append(OffsetRemoved(request.group_id, partition.topic, partition.partition))
    turn.reply(token, DeleteOffsetsResponse(errors=errors))


def remove_partitions(turn: Turn, partitions: Iterable[TopicPartition]) -> None:
    """Remove the offsets of deleted partitions, so that a later topic of the same name does not find them."""
    wanted = partitions if isinstance(partitions, Mapping) else dict.fromkeys(partitions)
    found = [*turn.shard.offsets.found_in(wanted), *turn.shard.pending.found_in(wanted)]
    for group_id, topic, partition in dict.fromkeys(found):
        turn.append(OffsetRemoved(group_id, topic, partition))
