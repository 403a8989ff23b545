"""OffsetFetch, versions 1 to 10: one group per request up to version 7, many from 8 on; topics by id in version 10.

Null topics request everything that the group has committed; with topic ids, topics that no longer exist are omitted. A
partition without a committed offset has offset -1 and no error, as has every partition of an unknown group. In version
1 only partitions have error codes.

Since version 7 a client may request stable offsets only: a partition for which an open transaction has written another
offset has UNSTABLE_OFFSET_COMMIT, and the client retries. Null topics then include pending offsets, which Kafka omits
if nothing else is committed: a reader would start before the offsets that the open transaction has read.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any

from flowstone.broker.coordinators.group_answers import answer_all, outcome_of, settle
from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.long_responses import encode_if_long
from flowstone.broker.topics.topic_slices import TopicsPart, is_large, join_topics, split_topics
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.coordinator.groups.messages import CommittedOffset, FetchOffsetsRequest, FetchOffsetsResponse
from flowstone.coordinator.runtime import Token
from flowstone.errors import ErrorCode
from flowstone.promise import Promise
from flowstone.types import TopicPartition
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

# More are handled in several time slices.
GROUPS_AT_ONCE = 100

_GROUP_ERROR_SINCE_VERSION = 2
_MANY_GROUPS_SINCE_VERSION = 8
_TOPIC_IDS_SINCE_VERSION = 10
_NOTHING_COMMITTED = CommittedOffset()


def handle(
    services: Services, context: RequestContext, request: OffsetFetchRequest
) -> Message | Promise[OffsetFetchResponse] | Coroutine[Any, Any, Message]:
    version, image = context.api_version, services.metadata.image
    if version < _MANY_GROUPS_SINCE_VERSION:
        if request.topics is None or is_large(request.topics, "partition_indexes"):
            return _fetch_one_in_parts(services, version, request)
        groups: Sequence[OffsetFetchRequestGroup] = [_only_group(request)]
    else:
        groups = request.groups
        if len(groups) > GROUPS_AT_ONCE or any(map(_is_large, groups)):
            return _fetch_many_in_parts(services, context, request)
    uses_topic_ids, stable = version >= _TOPIC_IDS_SINCE_VERSION, request.require_stable
    fetches = [_Fetch(image, group, uses_topic_ids=uses_topic_ids, require_stable=stable) for group in groups]

    def respond(outcomes: Sequence[object]) -> OffsetFetchResponse:
        answers = [
            settle(outcome, fetch.respond, fetch.refuse) for fetch, outcome in zip(fetches, outcomes, strict=True)
        ]
        if version >= _MANY_GROUPS_SINCE_VERSION:
            return OffsetFetchResponse(groups=answers)
        return _only_answer(version, request, answers[0])

    return answer_all([fetch.ask(services) for fetch in fetches], respond)


def _is_large(group: OffsetFetchRequestGroup) -> bool:
    """Return whether a group's part may take long: all of its committed offsets may be many."""
    return group.topics is None or is_large(group.topics, "partition_indexes")


async def _fetch_many_in_parts(services: Services, context: RequestContext, request: OffsetFetchRequest) -> Message:
    slices = TimeSlices(services.clock.monotonic)
    groups = [
        await _fetch_group(services, context.api_version, group, slices, require_stable=request.require_stable)
        async for group in slices.over(request.groups)
    ]
    elements = len(groups) + sum(len(topic.partitions) for group in groups for topic in group.topics)
    return await encode_if_long(services, context, OffsetFetchResponse(groups=groups), elements, slices)


async def _fetch_one_in_parts(services: Services, version: int, request: OffsetFetchRequest) -> OffsetFetchResponse:
    slices = TimeSlices(services.clock.monotonic)
    topics = None
    if request.topics is not None:
        topics = [_renamed(topic) async for topic in slices.over(request.topics)]
    group = OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
    answer = await _fetch_group(services, version, group, slices, require_stable=request.require_stable)
    return await _only_answer_in_parts(version, request, answer, slices)


async def _fetch_group(
    services: Services, version: int, group: OffsetFetchRequestGroup, slices: TimeSlices, *, require_stable: bool
) -> OffsetFetchResponseGroup:
    topics: list[OffsetFetchResponseTopics] = []
    for part, is_continued in _parts(group):
        uses_topic_ids = version >= _TOPIC_IDS_SINCE_VERSION
        fetch = _Fetch(services.metadata.image, part, uses_topic_ids=uses_topic_ids, require_stable=require_stable)
        outcome = await outcome_of(fetch.ask(services))
        if isinstance(outcome, FetchOffsetsResponse) and part.topics is None and not outcome.error_code:
            topics = await fetch.all_topics(outcome.offsets, slices)
        else:
            found = settle(outcome, fetch.respond, fetch.refuse)
            if found.error_code:
                return found
            join_topics(topics, found.topics, is_continued)
        await slices.yield_if_due()
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)


def _parts(group: OffsetFetchRequestGroup) -> Iterator[tuple[OffsetFetchRequestGroup, bool]]:
    """Yield the group's request in parts, each with whether it continues the last topic of the previous part."""
    if group.topics is None or not group.topics:
        yield group, False
        return
    for part in split_topics(group.topics, "partition_indexes"):
        yield _part(group, part), part.is_continued


def _part(group: OffsetFetchRequestGroup, part: TopicsPart) -> OffsetFetchRequestGroup:
    return OffsetFetchRequestGroup(
        group_id=group.group_id, member_id=group.member_id, member_epoch=group.member_epoch, topics=part.topics
    )


def _only_group(request: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    """Return the single group of an older request in the form of the newer ones."""
    topics = None
    if request.topics is not None:
        topics = [_renamed(topic) for topic in request.topics]
    return OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)


def _renamed(topic: OffsetFetchRequestTopic) -> OffsetFetchRequestTopics:
    return OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)


def _only_answer(version: int, request: OffsetFetchRequest, group: OffsetFetchResponseGroup) -> OffsetFetchResponse:
    if _is_told_by_partition(version, group):
        return OffsetFetchResponse(topics=[_refused(topic, group.error_code) for topic in request.topics or ()])
    return OffsetFetchResponse(topics=[_topic(topic) for topic in group.topics], error_code=group.error_code)


async def _only_answer_in_parts(
    version: int, request: OffsetFetchRequest, group: OffsetFetchResponseGroup, slices: TimeSlices
) -> OffsetFetchResponse:
    """Return what `_only_answer` returns, made in several slices of the loop."""
    if _is_told_by_partition(version, group):
        refused = [_refused(topic, group.error_code) async for topic in slices.over(request.topics or ())]
        return OffsetFetchResponse(topics=refused)
    topics = [_topic(topic) async for topic in slices.over(group.topics)]
    return OffsetFetchResponse(topics=topics, error_code=group.error_code)


def _is_told_by_partition(version: int, group: OffsetFetchResponseGroup) -> bool:
    return bool(group.error_code) and version < _GROUP_ERROR_SINCE_VERSION


def _topic(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic:
    return OffsetFetchResponseTopic(name=topic.name, partitions=topic.partitions)


def _refused(topic: OffsetFetchRequestTopic, code: int) -> OffsetFetchResponseTopic:
    partitions = [_partition(index, error=ErrorCode(code)) for index in topic.partition_indexes]
    return OffsetFetchResponseTopic(name=topic.name, partitions=partitions)


class _Fetch:
    """One group's part of a request."""

    def __init__(
        self, image: ClusterImage, group: OffsetFetchRequestGroup, *, uses_topic_ids: bool, require_stable: bool
    ) -> None:
        self._image, self._group = image, group
        self._uses_topic_ids, self._require_stable = uses_topic_ids, require_stable

    def ask(self, services: Services) -> Token:
        group = self._group
        names_member = group.member_epoch >= 0 or bool(group.member_id)
        wanted = FetchOffsetsRequest(
            group.group_id,
            self._named_partitions(),
            self._require_stable,
            member_id=(group.member_id or "") if names_member else None,
            member_epoch=group.member_epoch,
        )
        return services.groups.request(
            self._group.group_id, lambda shard, now_ms, token: shard.fetch_offsets(now_ms, token, wanted)
        )

    def respond(self, response: FetchOffsetsResponse) -> OffsetFetchResponseGroup:
        if response.error_code:
            return self.refuse(response.error_code)
        return OffsetFetchResponseGroup(group_id=self._group.group_id, topics=self._named_topics(response.offsets))

    def refuse(self, code: ErrorCode) -> OffsetFetchResponseGroup:
        return OffsetFetchResponseGroup(group_id=self._group.group_id, error_code=code)

    def _named_partitions(self) -> tuple[TopicPartition, ...] | None:
        if self._group.topics is None:
            return None
        return tuple(
            TopicPartition(name, index)
            for topic in self._group.topics
            if (name := self._name(topic)) is not None
            for index in topic.partition_indexes
        )

    def _named_topics(self, offsets: Mapping[TopicPartition, CommittedOffset]) -> list[OffsetFetchResponseTopics]:
        topics = []
        for topic in self._group.topics or ():
            name = self._name(topic)
            if name is None:
                partitions = [_partition(index, error=ErrorCode.UNKNOWN_TOPIC_ID) for index in topic.partition_indexes]
            else:
                partitions = [
                    _partition(index, offsets.get(TopicPartition(name, index), _NOTHING_COMMITTED))
                    for index in topic.partition_indexes
                ]
            topics.append(OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
        return topics

    async def all_topics(
        self, offsets: Mapping[TopicPartition, CommittedOffset], slices: TimeSlices
    ) -> list[OffsetFetchResponseTopics]:
        """Return everything that the group has committed."""
        by_topic: dict[str, list[OffsetFetchResponsePartition]] = {}
        async for (topic, index), committed in slices.over([*offsets.items()]):
            by_topic.setdefault(topic, []).append(_partition(index, committed))
        found = slices.over(by_topic.items())
        if not self._uses_topic_ids:
            return [OffsetFetchResponseTopics(name=name, partitions=partitions) async for name, partitions in found]
        return [
            OffsetFetchResponseTopics(topic_id=self._image.topics[name].topic_id, partitions=partitions)
            async for name, partitions in found
            if name in self._image.topics
        ]

    def _name(self, topic: OffsetFetchRequestTopics) -> str | None:
        if not self._uses_topic_ids:
            return topic.name
        found = self._image.topics_by_id.get(topic.topic_id)
        return None if found is None else found.name


def _partition(
    index: int, committed: CommittedOffset = _NOTHING_COMMITTED, error: ErrorCode = ErrorCode.NONE
) -> OffsetFetchResponsePartition:
    return OffsetFetchResponsePartition(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=error or committed.error_code,
    )
