"""Offsets of a topic's groups, found by its partitions, and copied to a branch of the topic."""

from __future__ import annotations

from typing import Any

from flowstone.coordinator.groups.branching import BranchOffsetsRequest, BranchOffsetsResponse
from flowstone.coordinator.groups.config import GroupConfig
from flowstone.coordinator.groups.records import NO_LEADER_EPOCH, OffsetCommitted
from flowstone.types import TopicPartition
from tests.unit.coordinator.groups.harness import START_MS, Coordinator

GROUPS = ("early", "late", "other")


def coordinator() -> tuple[Coordinator, list[Any]]:
    """A coordinator with offsets of three groups, and the list of its replies."""
    replies: list[Any] = []
    made = Coordinator(GroupConfig(), lambda token, response: replies.append(response))
    made.shard.replay(
        [
            OffsetCommitted("early", "orders", 0, 3, 5, "note", 1),
            OffsetCommitted("early", "orders", 1, 20, 5, "", 1),
            OffsetCommitted("late", "orders", 0, 11, 6, "", 1),
            OffsetCommitted("other", "payments", 0, 4, 1, "", 1),
        ]
    )
    return made, replies


def test_offsets_are_copied_and_none_is_beyond_the_branchs_end() -> None:
    made, replies = coordinator()
    made.now_ms = START_MS + 7
    made.take(made.shard.branch_offsets(made.now_ms, None, BranchOffsetsRequest("orders", "audit", GROUPS, (10, 20))))
    assert replies == [BranchOffsetsResponse(("early", "late"))]
    assert made.log == [
        OffsetCommitted("early", "audit", 0, 3, 5, "note", START_MS + 7),
        OffsetCommitted("early", "audit", 1, 20, 5, "", START_MS + 7),
        OffsetCommitted("late", "audit", 0, 10, NO_LEADER_EPOCH, "", START_MS + 7),
    ]


def test_a_branch_of_a_topic_without_offsets_gets_none() -> None:
    made, replies = coordinator()
    made.take(made.shard.branch_offsets(made.now_ms, None, BranchOffsetsRequest("nowhere", "audit", GROUPS, (10,))))
    assert (made.log, replies) == ([], [BranchOffsetsResponse(())])


def test_the_offsets_of_all_groups_in_a_partition_are_found() -> None:
    made, replies = coordinator()
    for partition in (TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("payments", 1)):
        made.take(made.shard.offsets_in(made.now_ms, None, partition))
    assert replies == [{"early": 3, "late": 11}, {"early": 20}, {}]
