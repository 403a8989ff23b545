"""TxnOffsetCommit, versions 0 to 5: commits offsets of a group as a part of a producer's transaction.

The offsets become visible with the transaction's end marker (`coordinator.groups.transactional_commits`). Before they
are stored, this broker asks the transaction coordinator. Up to version 4 the coordinator verifies that AddOffsetsToTxn
has added the group to the transaction; from version 5 on it adds the group (KIP-890). It is not asked if the
transaction is already open in the group's partition. A producer's commits and batches are verified in the order of
their arrival (`requests.transaction_verification`). Versions before 3 name no member. Offsets of partitions that do not
exist are refused one by one.

Temporary errors of the transaction coordinator become COORDINATOR_LOAD_IN_PROGRESS, after which clients retry with the
same broker; after other codes they would look up the group coordinator or fail. TRANSACTION_ABORTABLE is sent from
version 4 on, PRODUCER_FENCED in no version.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from flowstone.broker.coordinators.group_answers import outcome_of
from flowstone.broker.loop.time_slices import yield_to_loop
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.transaction_verification import MarkerGuard
from flowstone.broker.topics.topic_slices import TopicsPart, join_topics, split_topics
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.coordinator.effects import TransactionalProducer
from flowstone.coordinator.groups.messages import CommitRequest, CommitResponse, OffsetToCommit
from flowstone.coordinator.groups.transactional_commits import TransactionalCommitRequest
from flowstone.coordinator.runtime import Token
from flowstone.errors import ApiError, ErrorCode
from flowstone.log.partition.producers.producer_state import ProducerStates
from flowstone.promise import Promise
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
    commits: list[_Commit] = []
    transaction = _Transaction(services, context.api_version, request)
    async with transaction.turn():
        for part in split_topics(request.topics, "partitions"):
            if commits:
                await yield_to_loop()
            commit = _Commit(services.metadata.image, part)
            if commit.offsets:
                commit.stored = await transaction.store(commit.offsets)
            commits.append(commit)
    topics: list[TxnOffsetCommitResponseTopic] = []
    for commit in commits:
        if topics:
            await yield_to_loop()
        join_topics(topics, await commit.respond(), commit.is_continued)
    return TxnOffsetCommitResponse(topics=topics)


class _Transaction:
    """The transaction of a request; the coordinator is asked once, before the first offsets are stored."""

    def __init__(self, services: Services, version: int, request: TxnOffsetCommitRequest) -> None:
        self._services, self._version, self._request = services, version, request
        self._is_implicit = version >= _ADDS_GROUP_SINCE_VERSION
        self._shard = services.groups.shard_of(request.group_id)
        # Of the partition that has the group, once it is known to be here.
        self._producers: ProducerStates | None = None
        self._guard: MarkerGuard | None = None
        self._verified: ErrorCode | None = None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until all earlier requests of the producer are finished; forget the coordinator's answer at the end."""
        producer_id = self._request.producer_id
        async with self._services.verification.turn(producer_id):
            try:
                yield
            finally:
                if self._guard is not None:
                    self._guard.end()

    async def store(self, offsets: Sequence[OffsetToCommit]) -> Token:
        """Append offsets if the transaction is verified; return the promise of their CommitResponse."""
        if self._verified is None:
            self._verified = await self._verify()
        code, group_id = self._verified or self._outdated(), self._request.group_id
        if code is not ErrorCode.NONE:
            refused: Token = Promise()
            refused.set_result(CommitResponse([code] * len(offsets)))
            return refused
        asked = self._asked(offsets)
        return self._services.groups.request(
            group_id, lambda shard, now_ms, token: shard.commit_in_transaction(now_ms, token, asked)
        )

    def _outdated(self) -> ErrorCode:
        """Return NONE while the coordinator's answer is still valid, or else the error code for the client."""
        if self._services.groups.shard_of(self._request.group_id) is not self._shard:
            return ErrorCode.NOT_COORDINATOR
        if self._guard is None or not self._guard.is_stale or self._is_fenced():
            return ErrorCode.NONE
        return ErrorCode.INVALID_TXN_STATE

    def _is_fenced(self) -> bool:
        """Return whether the log will refuse the producer's epoch; the client must then get that error."""
        request, producers = self._request, self._producers
        return producers is not None and producers.is_fenced(request.producer_id, request.producer_epoch)

    def _asked(self, offsets: Sequence[OffsetToCommit]) -> TransactionalCommitRequest:
        request = self._request
        commit = CommitRequest(
            request.group_id, offsets, request.member_id, request.generation_id, request.group_instance_id
        )
        return TransactionalCommitRequest(TransactionalProducer(request.producer_id, request.producer_epoch), commit)

    async def _verify(self) -> ErrorCode:
        request, services = self._request, self._services
        producer = request.producer_id, request.producer_epoch
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        place = services.groups.partition_of(request.group_id)
        partition = None if place is None else services.partitions.find(place)
        if place is None or partition is None or self._shard is None:
            return ErrorCode.NOT_COORDINATOR
        producers = self._producers = partition.log.producers
        if producers.has_open_transaction(*producer) or self._is_fenced():
            return ErrorCode.NONE
        self._guard = MarkerGuard(partition, *producer, is_second_protocol=self._is_implicit)
        try:
            codes = await services.transactions.add_or_verify(
                request.transactional_id, *producer, [place], verify_only=not self._is_implicit
            )
        except ApiError as error:
            return self._told(error.code)
        return self._told(codes[place])

    def _told(self, code: ErrorCode) -> ErrorCode:
        """Return the client's error code for an error code of the transaction coordinator."""
        if code in _PASSING_ERRORS:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if code is ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if code is ErrorCode.TRANSACTION_ABORTABLE and self._version < _ABORTABLE_SINCE_VERSION:
            return ErrorCode.INVALID_TXN_STATE
        return code


class _Commit:
    """The offsets of some topics that can be committed, and the response for all of their partitions."""

    def __init__(self, image: ClusterImage, part: TopicsPart) -> None:
        self.is_continued = part.is_continued
        found = [image.topics.get(topic.name) for topic in part.topics]
        known = [range(0) if each is None else range(len(each.partitions)) for each in found]
        self._topics: list[tuple[TxnOffsetCommitRequestTopic, range]] = [*zip(part.topics, known, strict=True)]
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

        self.stored: Token | None = None

    async def respond(self) -> list[TxnOffsetCommitResponseTopic]:
        """Return the topics of the response, after the offsets are committed."""
        errors: Sequence[ErrorCode] = ()
        if self.stored is not None:
            outcome = await outcome_of(self.stored)
            errors = [outcome.code] * len(self.offsets) if isinstance(outcome, ApiError) else outcome.errors
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
