"""TxnOffsetCommit, versions 0 to 5: offsets of a group as a part of a producer's transaction.

The offsets count once the transaction's end marker is written (`coordinator.groups.transactional_commits`). Before they
are stored the transaction coordinator is asked: up to version 4 whether AddOffsetsToTxn has added the group to the
transaction; from version 5 on the group is added with the request (KIP-890). Versions before 3 name no member. Offsets
are taken for partitions that exist; the others are refused one by one.

Errors of the transaction coordinator that will pass are told as COORDINATOR_LOAD_IN_PROGRESS, with which clients try
again where they are; others would have them look for the group coordinator, or give up. TRANSACTION_ABORTABLE is known
from version 4 on, PRODUCER_FENCED in no version.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowstone.broker.coordinators.group_answers import outcome_of
from flowstone.broker.coordinators.verification_guards import Guard
from flowstone.broker.loop.time_slices import others_turn
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.topics.topic_slices import join_topics, split_topics
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.coordinator.effects import TransactionalProducer
from flowstone.coordinator.groups.messages import CommitRequest, CommitResponse, OffsetToCommit
from flowstone.coordinator.groups.transactional_commits import TransactionalCommitRequest
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.messages import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

_ABORTABLE_SINCE_VERSION = 4
_ADDS_GROUP_SINCE_VERSION = 5

_PASSING_ERRORS = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


async def handle(
    services: Services, context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    topics: list[TxnOffsetCommitResponseTopic] = []
    transaction = _Transaction(services, context.api_version, request)
    try:
        for part, is_continued in split_topics(request.topics, "partitions"):
            if topics:
                await others_turn()
            commit = _Commit(services.metadata.image, part)
            errors = await transaction.commit(commit.offsets) if commit.offsets else ()
            join_topics(topics, commit.respond(errors), is_continued)
    finally:
        transaction.close()
    return TxnOffsetCommitResponse(topics=topics)


class _Transaction:
    """The transaction that a request writes in, verified once, when the first offsets are to be stored."""

    def __init__(self, services: Services, version: int, request: TxnOffsetCommitRequest) -> None:
        self._services, self._version, self._request = services, version, request
        self._shard = services.groups.shard_of(request.group_id)
        self._guard: Guard | None = None
        self._verified: ErrorCode | None = None

    async def commit(self, offsets: Sequence[OffsetToCommit]) -> Sequence[ErrorCode]:
        """Store offsets in the transaction, and return a code for each of them."""
        if self._verified is None:
            self._verified = await self._verify()
        code, groups, group_id = self._verified, self._services.groups, self._request.group_id
        if code is ErrorCode.NONE and groups.shard_of(group_id) is not self._shard:
            code = ErrorCode.NOT_COORDINATOR  # markers may have been written elsewhere meanwhile
        elif code is ErrorCode.NONE and self._guard is not None and self._guard.is_broken:
            code = ErrorCode.INVALID_TXN_STATE
        if code is not ErrorCode.NONE:
            return [code] * len(offsets)
        asked = self._asked(offsets)
        outcome = await outcome_of(
            groups.request(group_id, lambda shard, now_ms, token: shard.commit_in_transaction(now_ms, token, asked))
        )
        if isinstance(outcome, ApiError):
            return [outcome.code] * len(offsets)
        assert isinstance(outcome, CommitResponse)
        return outcome.errors

    def close(self) -> None:
        if self._guard is not None:
            self._guard.end()

    def _asked(self, offsets: Sequence[OffsetToCommit]) -> TransactionalCommitRequest:
        request = self._request
        commit = CommitRequest(
            request.group_id, offsets, request.member_id, request.generation_id, request.group_instance_id
        )
        return TransactionalCommitRequest(TransactionalProducer(request.producer_id, request.producer_epoch), commit)

    async def _verify(self) -> ErrorCode:
        request, groups = self._request, self._services.groups
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        place = groups.partition_of(request.group_id)
        if place is None or self._shard is None:
            return ErrorCode.NOT_COORDINATOR
        self._guard = groups.guards.begin(place.partition, request.producer_id)
        codes = await self._services.transactions.add_or_verify(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            [place],
            verify_only=self._version < _ADDS_GROUP_SINCE_VERSION,
        )
        return self._told(codes[place])

    def _told(self, code: ErrorCode) -> ErrorCode:
        """Return what the client hears of an error of the transaction coordinator."""
        if code in _PASSING_ERRORS:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if code is ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if code is ErrorCode.TRANSACTION_ABORTABLE and self._version < _ABORTABLE_SINCE_VERSION:
            return ErrorCode.INVALID_TXN_STATE
        return code


class _Commit:
    """The offsets of some topics that can be committed, and the answer for all of their partitions."""

    def __init__(self, image: ClusterImage, topics: Sequence[TxnOffsetCommitRequestTopic]) -> None:
        found = [image.topics.get(topic.name) for topic in topics]
        known = [range(0) if each is None else range(len(each.partitions)) for each in found]
        self._topics = [*zip(topics, known, strict=True)]
        self.offsets: list[OffsetToCommit] = [
            (
                topic.name,
                each.partition_index,
                each.committed_offset,
                each.committed_leader_epoch,
                each.committed_metadata,
            )
            for topic, indexes in self._topics
            for each in topic.partitions
            if each.partition_index in indexes
        ]

    def respond(self, errors: Sequence[ErrorCode]) -> list[TxnOffsetCommitResponseTopic]:
        """Return the answer: `errors` are those of the offsets, in order."""
        told, unknown = iter(errors), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return [
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=each.partition_index,
                        error_code=next(told) if each.partition_index in indexes else unknown,
                    )
                    for each in topic.partitions
                ],
            )
            for topic, indexes in self._topics
        ]
