"""The hash of a consumer group's topics, which is stored as a signed number of 64 bits."""

from __future__ import annotations

from typing import Any

from flowstone.coordinator.groups.config import GroupConfig
from flowstone.coordinator.groups.consumer.group import ConsumerGroup
from flowstone.coordinator.groups.consumer.target import follow_metadata, topics_hash
from flowstone.coordinator.groups.state import Turn
from tests.unit.coordinator.groups.harness import START_MS, Coordinator, ManyTopics


def world(*topics: str) -> tuple[Turn, ConsumerGroup, ManyTopics]:
    coordinator = Coordinator(GroupConfig(), lambda token, reply: None)
    group = ConsumerGroup("g")
    group.topic_subscribers.update(topics)
    shard: Any = coordinator.shard._state
    shard.groups["g"] = group
    assert isinstance(coordinator.topics, ManyTopics)
    return Turn(shard, START_MS), group, coordinator.topics


def hash_of(*topics: str) -> int:
    turn, group, _ = world(*topics)
    return topics_hash(turn, group)


def test_hashes_differ_by_topic_and_fit_64_signed_bits() -> None:
    hashes = [hash_of(f"t{number}") for number in range(16)]
    assert len(set(hashes)) == 16
    assert min(hashes) < 0 < max(hashes)
    assert all(-(2**63) <= each < 2**63 for each in hashes)


def test_the_order_of_subscriptions_does_not_matter_and_every_topic_counts() -> None:
    assert hash_of("a", "b") == hash_of("b", "a")
    assert len({hash_of("a", "b"), hash_of("a"), hash_of("b"), hash_of("ab")}) == 4


def test_topics_that_do_not_exist_do_not_count() -> None:
    turn, group, topics = world("a", "b")
    topics.deleted.add("b")
    assert topics_hash(turn, group) == hash_of("a")
    topics.deleted.add("a")
    assert topics_hash(turn, group) == 0


def test_a_change_of_the_metadata_raises_the_epoch_if_it_concerns_the_groups_topics() -> None:
    turn, group, topics = world("a")
    epoch = group.epoch
    follow_metadata(turn, group)
    assert (group.epoch, group.metadata_hash, group.rebalance_count) == (epoch + 1, hash_of("a"), 1)
    assert (group.rebalance_reason, group.rebalance_timestamp_ms) == (
        "the partitions of its topics have changed",
        START_MS,
    )
    topics.deleted.add("other")
    follow_metadata(turn, group)
    assert (group.epoch, group.checked_version) == (epoch + 1, topics.version)
    topics.deleted.add("a")
    follow_metadata(turn, group)
    assert (group.epoch, group.metadata_hash) == (epoch + 2, 0)
