"""OffsetCommit, versions 2 to 10: topics by name, in version 10 by id.

Offsets are taken for partitions that exist; the others are refused one by one, and without any that exist the
coordinator is not asked, as in Kafka. Versions before 9 do not know GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowstone.broker.context import RequestContext, Services
from flowstone.broker.group_answers import answer
from flowstone.cluster.image import ClusterImage, TopicImage
from flowstone.coordinator.groups.messages import CommitRequest, CommitResponse, OffsetToCommit
from flowstone.errors import ErrorCode
from flowstone.promise import Promise
from flowstone.wire.messages import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

# For ever, and still a time when added to another one.
RETENTION_TIME_MS_MAX = 1 << 60

_GROUP_ID_NOT_FOUND_SINCE_VERSION = 9
_TOPIC_IDS_SINCE_VERSION = 10


def handle(
    services: Services, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse | Promise[OffsetCommitResponse]:
    commit = _Commit(services.metadata.image, context.api_version, request)
    if not commit.offsets:
        return commit.respond(CommitResponse(()))
    asked = CommitRequest(
        group_id=request.group_id,
        offsets=commit.offsets,
        member_id=request.member_id,
        generation_id=request.generation_id_or_member_epoch,
        group_instance_id=request.group_instance_id,
        retention_time_ms=min(request.retention_time_ms, RETENTION_TIME_MS_MAX),
    )
    token = services.groups.request(
        request.group_id, lambda shard, now_ms, token: shard.commit_offsets(now_ms, token, asked)
    )
    return answer(token, commit.respond, commit.refuse)


class _Commit:
    """The offsets that can be committed, and what becomes of each partition that was named."""

    def __init__(self, image: ClusterImage, version: int, request: OffsetCommitRequest) -> None:
        self._version, self._request = version, request
        self.offsets: list[OffsetToCommit] = []
        # Of all partitions named, counted through the topics: those that the coordinator is not asked about, and why.
        self._refused: dict[int, ErrorCode] = {}
        for topic in request.topics:
            self._locate(image, topic)

    def _locate(self, image: ClusterImage, topic: OffsetCommitRequestTopic) -> None:
        found: TopicImage | None
        if self._version >= _TOPIC_IDS_SINCE_VERSION:
            found, missing = image.topics_by_id.get(topic.topic_id), ErrorCode.UNKNOWN_TOPIC_ID
        else:
            found, missing = image.topics.get(topic.name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        name, partition_count = "", 0
        if found is not None:
            name, partition_count, missing = found.name, len(found.partitions), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for each in topic.partitions:
            index = each.partition_index
            if 0 <= index < partition_count:
                self.offsets.append(
                    OffsetToCommit(
                        name, index, each.committed_offset, each.committed_leader_epoch, each.committed_metadata
                    )
                )
            else:
                self._refused[len(self.offsets) + len(self._refused)] = missing

    def respond(self, response: CommitResponse) -> OffsetCommitResponse:
        codes = iter(self._codes(response.errors))
        topics = [
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
                    for each, code in zip(topic.partitions, codes, strict=False)  # the next topic goes on from there
                ],
            )
            for topic in self._request.topics
        ]
        return OffsetCommitResponse(topics=topics)

    def refuse(self, code: ErrorCode) -> OffsetCommitResponse:
        return self.respond(CommitResponse([code] * len(self.offsets)))

    def _codes(self, errors: Sequence[ErrorCode]) -> Sequence[ErrorCode]:
        """Of all partitions named, in order, from those of the offsets asked for."""
        if not self._refused and not any(errors):
            return errors
        told = iter(errors)
        count = len(errors) + len(self._refused)
        return [self._refused[at] if at in self._refused else self._known(next(told)) for at in range(count)]

    def _known(self, code: ErrorCode) -> ErrorCode:
        if code is ErrorCode.GROUP_ID_NOT_FOUND and self._version < _GROUP_ID_NOT_FOUND_SINCE_VERSION:
            return ErrorCode.ILLEGAL_GENERATION
        return code
