"""Decides a request to branch a topic: pure.

A branch is a topic of its own, with the partitions and settings of its source. Its partitions lie where the source's
do, since they share files with them, and begin in the source's leader epochs, since their first batches carry those and
epochs must not go back in a log.
"""

from __future__ import annotations

from flowstone.cluster.decisions.partition_plans import PartitionBudget
from flowstone.cluster.decisions.topic_changes import check_new_name
from flowstone.cluster.decisions.topic_names import is_internal
from flowstone.cluster.image.cluster_image import ClusterImage, TopicImage
from flowstone.cluster.image.records import MetadataRecord, TopicCreated
from flowstone.config import BrokerConfig
from flowstone.errors import ApiError, ErrorCode


def find_source(image: ClusterImage, name: str) -> TopicImage:
    """Return the topic to be branched. Raises ApiError if there is none, or it is internal."""
    topic = image.topics.get(name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{name}'.")
    if is_internal(name):
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' is internal and cannot be branched.")
    return topic


def branch_topic(
    image: ClusterImage, source: TopicImage, target: str, topic_id: bytes, config: BrokerConfig
) -> tuple[list[MetadataRecord], TopicImage]:
    """Return the records that create the branch, and its topic. Raises ApiError if it cannot be created."""
    check_new_name(image, target)
    PartitionBudget(image.partition_count, config.max_partitions).take(len(source.partitions))
    branch = TopicImage(target, topic_id, source.partitions, source.configs)
    return [TopicCreated(branch.name, branch.topic_id, branch.partitions, branch.configs)], branch
