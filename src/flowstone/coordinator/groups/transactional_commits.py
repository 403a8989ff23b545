"""TxnOffsetCommit and the end of its transaction: offsets that take effect together with a producer's records.

The group's offsets are pending until the producer's end marker (`pending_offsets`). If the request names a member, it
is checked against the group, so that a removed member cannot commit offsets that its successor reads again (KIP-447).
Older clients name neither member nor generation: they are fenced by their producer epoch alone. A commit does not keep
a session alive, and it is accepted while the group waits for its assignment, as in Kafka.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from flowstone.coordinator.effects import TransactionalProducer
from flowstone.coordinator.groups.commits import accept_offsets
from flowstone.coordinator.groups.config import GROUP_OVERHEAD_BYTES, TEXT_CHARACTER_BYTES
from flowstone.coordinator.groups.messages import CommitRequest, CommitResponse
from flowstone.coordinator.groups.pending_offsets import pending_bytes
from flowstone.coordinator.groups.state import Turn
from flowstone.errors import ErrorCode
from flowstone.wire.end_markers import EndMarker


class TransactionalCommitRequest(NamedTuple):
    """Offsets to commit in a producer's transaction. The response is a CommitResponse."""

    producer: TransactionalProducer
    commit: CommitRequest


class EndTransactionRequest(NamedTuple):
    """The end of a producer's transaction. The response is None."""

    producer: TransactionalProducer
    marker: EndMarker
    transaction_version: int


def commit_in_transaction(turn: Turn, token: Any, request: TransactionalCommitRequest) -> None:
    commit = request.commit
    error_code = _check(turn, commit)
    if error_code is not ErrorCode.NONE:
        turn.reply(token, CommitResponse([error_code] * len(commit.offsets)))
        return
    errors = accept_offsets(turn, commit)
    if turn.effects.records:
        turn.effects.producer = request.producer
    turn.reply(token, CommitResponse(errors))


def _check(turn: Turn, commit: CommitRequest) -> ErrorCode:
    group = turn.shard.groups.get(commit.group_id)
    if group is not None:
        error_code = group.check_transactional_commit(commit)
    else:
        error_code = ErrorCode.ILLEGAL_GENERATION if commit.generation_id >= 0 else ErrorCode.NONE
    if error_code is ErrorCode.NONE and not _has_memory(turn, commit):
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return error_code


def _has_memory(turn: Turn, commit: CommitRequest) -> bool:
    """Return whether all groups together leave enough memory for these offsets, counted as if all of them were new."""
    group_id, length_max = commit.group_id, turn.shard.config.offset_metadata_max_bytes
    growth_bytes = 0
    if group_id not in turn.shard.groups:
        growth_bytes = GROUP_OVERHEAD_BYTES + TEXT_CHARACTER_BYTES * len(group_id)
    texts = (metadata or "" for *_, metadata in commit.offsets)
    growth_bytes += sum(pending_bytes(text) for text in texts if len(text) <= length_max)
    return turn.shard.account.may_grow(group_id, growth_bytes)


def end_transaction(turn: Turn, token: Any, request: EndTransactionRequest) -> None:
    """End the producer's transaction, even if it has no pending offsets: the log's own state needs the marker."""
    turn.effects.producer, turn.effects.marker = request.producer, request.marker
    turn.effects.transaction_version = request.transaction_version
    turn.reply(token, None)
