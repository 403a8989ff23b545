"""OffsetCommit, versions 2 to 10: topics by name, in version 10 by id.

Offsets are taken for partitions that exist; the others are refused one by one, and without any that exist the
coordinator is not asked, as in Kafka. Versions before 9 do not know GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from flowstone.broker.context import RequestContext, Services
from flowstone.broker.group_answers import answer
from flowstone.cluster.image import ClusterImage, TopicImage
from flowstone.coordinator.groups.messages import CommitRequest, CommitResponse, OffsetToCommit
from flowstone.errors import ErrorCode
from flowstone.promise import Promise
from flowstone.types import TopicPartition
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
        return commit.respond(CommitResponse({}))
    asked = CommitRequest(
        group_id=request.group_id,
        offsets=tuple(commit.offsets),
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
        # What each named partition is called, or why it is refused; in the request's order.
        self._places: list[list[TopicPartition | ErrorCode]] = []
        for topic in request.topics:
            self._places.append(self._locate(image, topic))

    def _locate(self, image: ClusterImage, topic: OffsetCommitRequestTopic) -> list[TopicPartition | ErrorCode]:
        found: TopicImage | None
        if self._version >= _TOPIC_IDS_SINCE_VERSION:
            found, missing = image.topics_by_id.get(topic.topic_id), ErrorCode.UNKNOWN_TOPIC_ID
        else:
            found, missing = image.topics.get(topic.name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if found is None:
            return [missing] * len(topic.partitions)
        places: list[TopicPartition | ErrorCode] = []
        for each in topic.partitions:
            if not 0 <= each.partition_index < len(found.partitions):
                places.append(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                continue
            places.append(TopicPartition(found.name, each.partition_index))
            self.offsets.append(
                OffsetToCommit(
                    topic=found.name,
                    partition=each.partition_index,
                    offset=each.committed_offset,
                    leader_epoch=each.committed_leader_epoch,
                    metadata=each.committed_metadata,
                )
            )
        return places

    def respond(self, response: CommitResponse) -> OffsetCommitResponse:
        return self._respond(response.errors)

    def refuse(self, code: ErrorCode) -> OffsetCommitResponse:
        return self._respond({TopicPartition(each.topic, each.partition): code for each in self.offsets})

    def _respond(self, errors: dict[TopicPartition, ErrorCode]) -> OffsetCommitResponse:
        topics = []
        for topic, places in zip(self._request.topics, self._places, strict=True):
            partitions = [
                OffsetCommitResponsePartition(
                    partition_index=each.partition_index,
                    error_code=self._code(place if isinstance(place, ErrorCode) else errors[place]),
                )
                for each, place in zip(topic.partitions, places, strict=True)
            ]
            topics.append(OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
        return OffsetCommitResponse(topics=topics)

    def _code(self, code: ErrorCode) -> ErrorCode:
        if code is ErrorCode.GROUP_ID_NOT_FOUND and self._version < _GROUP_ID_NOT_FOUND_SINCE_VERSION:
            return ErrorCode.ILLEGAL_GENERATION
        return code
