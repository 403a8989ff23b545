"""Lists topics with their numbers of partitions and ids, and creates those that a writer needs.

A topic is created the way Kafka's producers do it: by a Metadata request that allows the creation, if the broker's
auto.create.topics.enable is true. Flowstone has the new topic in its answer. Apache Kafka answers that the topic is
unknown while it creates it, so the client asks again unless the setting is false.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flowstone.client.brokers import Brokers
from flowstone.client.errors import Retriable, UnknownTopic, refusal
from flowstone.client.retry_deadline import RetryDeadline
from flowstone.errors import ErrorCode
from flowstone.types import ZERO_UUID
from flowstone.wire.messages import DescribeConfigsRequest, DescribeConfigsRequestResource, DescribeConfigsResponse

AUTO_CREATE = "auto.create.topics.enable"
BROKER_RESOURCE = 4


class DescribedTopic(NamedTuple):
    """A topic as a broker describes it. A topic that is deleted and created again has another id."""

    partition_count: int
    topic_id: bytes | None  # None: the broker's release is older than topic ids (Kafka 2.8)


def describe_topics(
    brokers: Brokers, names: Sequence[str] | None, deadline: RetryDeadline, *, creates_missing: bool = False
) -> dict[str, DescribedTopic]:
    """Return the topics by name. None: all topics but internal ones. Unknown topics are absent."""
    while True:
        try:
            found = {}
            for topic in brokers.describe(names, deadline.left_s, creates_missing=creates_missing):
                if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or (names is None and topic.is_internal):
                    continue
                if topic.error_code:
                    raise refusal(topic.error_code, f"topic {topic.name}")
                topic_id = topic.topic_id if topic.topic_id != ZERO_UUID else None
                found[topic.name or ""] = DescribedTopic(len(topic.partitions), topic_id)
            return found
        except Retriable as error:
            deadline.wait(error)


def ensure_topics(brokers: Brokers, names: Sequence[str], deadline_s: float) -> dict[str, int]:
    """Return how many partitions each topic has, after the broker created those that were missing.

    Topics that the broker does not create are absent.
    """
    deadline = RetryDeadline(deadline_s)
    while True:
        described = describe_topics(brokers, names, deadline, creates_missing=True)
        counts = {name: each.partition_count for name, each in described.items()}
        missing = [name for name in names if name not in counts]
        if not missing or not _creates_topics(brokers, deadline):
            return counts
        try:
            deadline.wait(UnknownTopic(f"there is no topic {missing[0]}"))
        except UnknownTopic:
            return counts


def _creates_topics(brokers: Brokers, deadline: RetryDeadline) -> bool:
    """Return whether brokers create missing topics; True if they do not report the setting."""
    node_id = brokers.any_node_id()
    if node_id is None:
        return True
    wanted = DescribeConfigsRequestResource(
        resource_type=BROKER_RESOURCE, resource_name=str(node_id), configuration_keys=[AUTO_CREATE]
    )
    try:
        answer = brokers.ask_node(
            node_id, DescribeConfigsRequest(resources=[wanted]), DescribeConfigsResponse, deadline.left_s
        )
    except Retriable:
        return True
    values = [config.value for each in answer.results for config in each.configs if config.name == AUTO_CREATE]
    return values != ["false"]
