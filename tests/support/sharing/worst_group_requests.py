"""The most expensive requests of consumer groups (KIP-848), and of some administrative APIs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from flowstone.broker.handlers.consumer.consumer_group_heartbeat import SUBSCRIBED_TOPICS_MAX
from flowstone.wire import messages as m
from tests.hostile.worst_case import Case


def consumer_group_cases() -> Iterator[Case]:
    topics = "subscribed_topic_names"
    yield Case("ConsumerGroupHeartbeat", 1, lambda n: _beat(**{topics: _names(min(n, SUBSCRIBED_TOPICS_MAX))}))
    yield Case("ConsumerGroupHeartbeat by pattern", 1, lambda n: _beat(subscribed_topic_regex="(a*)*" * (n // 100)))
    yield Case("ConsumerGroupHeartbeat of many partitions", 1, lambda n: _beat(owned=range(n)))
    yield Case("ListConfigResources", 1, lambda n: m.ListConfigResourcesRequest(resource_types=[2, 4, 8, 16, 32] * n))
    yield Case(
        "DescribeQuorum",
        2,
        lambda n: m.DescribeQuorumRequest(
            topics=[m.DescribeQuorumRequestTopic(topic_name=name, partitions=[]) for name in _names(n)]
        ),
    )
    yield Case("GetTelemetrySubscriptions", 0, lambda n: m.GetTelemetrySubscriptionsRequest())
    yield Case("PushTelemetry", 0, lambda n: m.PushTelemetryRequest(client_instance_id=b"i" * 16, metrics=bytes(n)))
    yield Case("ConsumerGroupDescribe", 1, lambda n: m.ConsumerGroupDescribeRequest(group_ids=_names(n)))


def _names(count: int) -> list[str]:
    return [f"n{index}" for index in range(count)]


def _beat(owned: Iterable[int] = (), **fields: Any) -> m.ConsumerGroupHeartbeatRequest:
    partitions = m.ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=bytes(16), partitions=list(owned))
    fields |= {"member_epoch": 0, "rebalance_timeout_ms": 1000, "topic_partitions": [partitions]}
    return m.ConsumerGroupHeartbeatRequest(group_id="beaten", member_id="m", **fields)
