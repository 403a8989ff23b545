"""Creation of many topics, or partitions of topics, for one request: in parts, with the limits of a single change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import Services
from flowstone.broker.topics.metadata_changes import CHANGE_TIMEOUT_MS, PART_WEIGHT, change_in_parts
from flowstone.cluster.decisions.configs import broker_config
from flowstone.cluster.decisions.partition_plans import PARTITIONS_PER_REQUEST_MAX, NewPartitions, NewTopic
from flowstone.cluster.decisions.topic_changes import TopicResult, create_partitions, create_topics, refuse_repeated
from flowstone.cluster.decisions.topic_names import VARIED_CHARACTERS_MAX
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.ids import random_id
from flowstone.cluster.image.records import MetadataRecord, PartitionsAdded, TopicCreated

_Decided = tuple[Sequence[MetadataRecord], list[TopicResult]]


class _Budget:
    """The number of partitions that a request may still create; a part that is decided again counts once."""

    def __init__(self) -> None:
        self._left = PARTITIONS_PER_REQUEST_MAX
        self._part: Sequence[object] = ()
        self._taken = 0

    def left(self, part: Sequence[object]) -> int:
        """Return how many partitions this part may create, ignoring earlier decisions about it."""
        if part is not self._part:
            self._left -= self._taken
            self._part, self._taken = part, 0
        return self._left

    def take(self, records: Sequence[MetadataRecord]) -> None:
        made = (len(each.partitions) for each in records if isinstance(each, TopicCreated | PartitionsAdded))
        self._taken = sum(made)


async def create_in_parts(
    services: Services,
    topics: Sequence[NewTopic],
    *,
    timeout_ms: int = CHANGE_TIMEOUT_MS,
    validate_only: bool = False,
) -> list[TopicResult]:
    """Create topics in parts. Names that collide with each other are detected only when topics are created, not by
    validation.
    """
    times = Counter(topic.name for topic in topics)
    budget = _Budget()

    def decide(image: ClusterImage, part: list[NewTopic]) -> _Decided:
        config = broker_config(image, services.config)
        records, results = create_topics(image, part, config, random_id, budget.left(part))
        budget.take(records)
        return () if validate_only else records, results

    slices = TimeSlices(services.clock.monotonic)
    unique = [topic async for topic in slices.over(topics) if times[topic.name] == 1]
    results = await change_in_parts(services, unique, decide, timeout_ms, _weigh_topic)
    return results + refuse_repeated(name for name, count in times.items() if count > 1)


async def add_partitions_in_parts(
    services: Services, topics: Sequence[NewPartitions], timeout_ms: int, *, validate_only: bool
) -> list[TopicResult]:
    """Add partitions to topics in parts."""
    times = Counter(topic.name for topic in topics)
    budget = _Budget()

    def decide(image: ClusterImage, part: list[NewPartitions]) -> _Decided:
        config = broker_config(image, services.config)
        records, results = create_partitions(image, part, config, budget.left(part))
        budget.take(records)
        return () if validate_only else records, results

    slices = TimeSlices(services.clock.monotonic)
    unique = [topic async for topic in slices.over(topics) if times[topic.name] == 1]
    results = await change_in_parts(services, unique, decide, timeout_ms, _weigh_growth)
    return refuse_repeated(name for name, count in times.items() if count > 1) + results


def _weigh_topic(topic: NewTopic) -> int:
    # A name with many dots or underscores is compared with all others.
    if sum(topic.name.count(each) for each in "._") > VARIED_CHARACTERS_MAX:
        return PART_WEIGHT
    return min(max(1, topic.num_partitions, len(topic.assignments), len(topic.configs)), PART_WEIGHT)


def _weigh_growth(wanted: NewPartitions) -> int:
    return min(max(1, wanted.count, len(wanted.assignments or ())), PART_WEIGHT)
