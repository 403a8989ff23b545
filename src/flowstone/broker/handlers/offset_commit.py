"""OffsetCommit, versions 2 to 10: topics by name, in version 10 by id.

Offsets are taken for partitions that exist; the others are refused one by one, and without any that exist the
coordinator is not asked, as in Kafka. Versions before 9 do not know GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, cast

from flowstone.broker.coordinators.group_answers import Answer
from flowstone.broker.loop.time_slices import yield_to_loop
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.encoded_response import EncodedResponse
from flowstone.broker.topics.topic_slices import is_large, join_topics, split_topics
from flowstone.cluster.image.cluster_image import ClusterImage, TopicImage
from flowstone.coordinator.groups.messages import CommitRequest, CommitResponse, OffsetToCommit
from flowstone.errors import ErrorCode
from flowstone.promise import Promise
from flowstone.wire.codec import response_encoder
from flowstone.wire.messages import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

OFFSET_COMMIT_KEY = 8
# For ever, and still a time when added to another one.
RETENTION_TIME_MS_MAX = 1 << 60

# Answers without an error that are kept, by the partitions they name; those that name more of them are not.
ACCEPTANCES_CACHED_MAX = 1024
CACHED_PARTITIONS_MAX = 128

_GROUP_ID_NOT_FOUND_SINCE_VERSION = 9
_TOPIC_IDS_SINCE_VERSION = 10

_Response = OffsetCommitResponse | EncodedResponse
# The partitions that a request names, in its order: each topic's name, id and partitions.
_Layout = tuple[tuple[str, bytes, tuple[int, ...]], ...]


def handle(services: Services, context: RequestContext, request: OffsetCommitRequest) -> _Response | Promise[_Response]:
    return _commit(services, context, request, request.topics)


def handle_large(
    services: Services, context: RequestContext, request: OffsetCommitRequest
) -> _Response | Promise[_Response] | Coroutine[Any, Any, OffsetCommitResponse]:
    """Handle a request that may name many partitions, in several time slices."""
    if is_large(request.topics, "partitions"):
        return _commit_in_parts(services, context, request)
    return handle(services, context, request)


async def _commit_in_parts(
    services: Services, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse:
    """Commit in parts. Each part is a commit of its own: parts stored before one is refused stay committed."""
    topics: list[OffsetCommitResponseTopic] = []
    for part, is_continued in split_topics(request.topics, "partitions"):
        answer = _commit(services, context, request, part, is_kept=False)
        response = await answer if isinstance(answer, Promise) else answer
        assert isinstance(response, OffsetCommitResponse)
        join_topics(topics, response.topics, is_continued)
        await yield_to_loop()
    return OffsetCommitResponse(topics=topics)


def _commit(
    services: Services,
    context: RequestContext,
    request: OffsetCommitRequest,
    topics: Sequence[OffsetCommitRequestTopic],
    *,
    is_kept: bool = True,
) -> _Response | Promise[_Response]:
    """Commit offsets of these topics of the request; `is_kept` allows a cached response."""
    is_kept = is_kept and context.complete is None
    commit = _Commit(services.metadata.image, context.api_version, topics, is_kept)
    if not commit.offsets:
        return commit.respond(CommitResponse(()))
    asked = CommitRequest(
        group_id=request.group_id,
        offsets=commit.offsets,
        member_id=request.member_id,
        generation_id=request.generation_id_or_member_epoch,
        group_instance_id=request.group_instance_id,
        knows_member_epochs=context.api_version >= _GROUP_ID_NOT_FOUND_SINCE_VERSION,
        retention_time_ms=min(request.retention_time_ms, RETENTION_TIME_MS_MAX),
    )
    return services.groups.request(
        request.group_id,
        lambda shard, now_ms, token: shard.commit_offsets(now_ms, token, asked),
        Answer(commit.respond, commit.refuse),
    )


class _Commit:
    """The offsets that can be committed, and the error code of each partition that cannot."""

    def __init__(
        self, image: ClusterImage, version: int, topics: Sequence[OffsetCommitRequestTopic], is_kept: bool
    ) -> None:
        self._version, self._topics, self._is_kept = version, topics, is_kept
        self.offsets: list[OffsetToCommit] = []
        # Of all partitions named, counted through the topics: those that the coordinator is not asked about, and why.
        self._refused: dict[int, ErrorCode] = {}
        for topic in topics:
            self._locate(image, topic)

    def _locate(self, image: ClusterImage, topic: OffsetCommitRequestTopic) -> None:
        found: TopicImage | None
        if self._version >= _TOPIC_IDS_SINCE_VERSION:
            found, missing = image.topics_by_id.get(topic.topic_id), ErrorCode.UNKNOWN_TOPIC_ID
        else:
            found, missing = image.topics.get(topic.name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        name, known = "", range(0)
        if found is not None:
            name, known, missing = found.name, range(len(found.partitions)), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        offsets = [
            (name, each.partition_index, each.committed_offset, each.committed_leader_epoch, each.committed_metadata)
            for each in topic.partitions
            if each.partition_index in known
        ]
        if len(offsets) < len(topic.partitions):
            first = len(self.offsets) + len(self._refused)
            for at, each in enumerate(topic.partitions, first):
                if each.partition_index not in known:
                    self._refused[at] = missing
        self.offsets += offsets

    def respond(self, response: CommitResponse) -> _Response:
        layout = _layout(self._topics)
        errors = response.errors
        if self._refused or any(errors):
            return _response(layout, self._codes(errors))
        if len(errors) > CACHED_PARTITIONS_MAX or not self._is_kept:
            return _response(layout, errors)
        return _kept_acceptance(self._version, layout)

    def refuse(self, code: ErrorCode) -> _Response:
        return self.respond(CommitResponse([code] * len(self.offsets)))

    def _codes(self, errors: Sequence[ErrorCode]) -> Sequence[ErrorCode]:
        """Return the error codes of all named partitions, in order, given those of the committed offsets."""
        told = iter(errors)
        count = len(errors) + len(self._refused)
        return [self._refused[at] if at in self._refused else self._known(next(told)) for at in range(count)]

    def _known(self, code: ErrorCode) -> ErrorCode:
        if code is ErrorCode.GROUP_ID_NOT_FOUND and self._version < _GROUP_ID_NOT_FOUND_SINCE_VERSION:
            return ErrorCode.ILLEGAL_GENERATION
        return code


def _layout(topics: Sequence[OffsetCommitRequestTopic]) -> _Layout:
    return tuple(
        [(topic.name, topic.topic_id, tuple([each.partition_index for each in topic.partitions])) for topic in topics]
    )


def _response(layout: _Layout, codes: Iterable[ErrorCode]) -> OffsetCommitResponse:
    """Return the response with the partitions of `layout` and their error codes, in order."""
    told = iter(codes)
    topics = [
        OffsetCommitResponseTopic(
            name=name,
            topic_id=topic_id,
            partitions=[
                OffsetCommitResponsePartition(partition_index=index, error_code=code)
                for index, code in zip(indexes, told, strict=False)  # the next topic goes on from there
            ],
        )
        for name, topic_id, indexes in layout
    ]
    return OffsetCommitResponse(topics=topics)


@lru_cache(ACCEPTANCES_CACHED_MAX)
def _kept_acceptance(version: int, layout: _Layout) -> EncodedResponse:
    """Return the cached response without errors: a client names the same partitions in each commit."""
    response = _response(layout, repeat(ErrorCode.NONE))
    chunks = cast(list[bytes], response_encoder(OFFSET_COMMIT_KEY, version)(response))
    return EncodedResponse(chunks, Counter())
