"""Writing records of consumer groups. A call may write several, each of which sees the effect of those before.

A record is applied at once, and `GroupShard.replay` skips it when the runtime has appended it. If the append fails, the
shard is discarded with the rest of its state.
"""

from __future__ import annotations

from collections.abc import Iterable

from flowstone.coordinator.groups.consumer.group import ConsumerGroup
from flowstone.coordinator.groups.consumer.replay import replay
from flowstone.coordinator.groups.consumer_records import ConsumerGroupStored, ConsumerRecord
from flowstone.coordinator.groups.state import Turn


def write(turn: Turn, *records: ConsumerRecord) -> None:
    write_all(turn, records)


def write_all(turn: Turn, records: Iterable[ConsumerRecord]) -> None:
    for record in records:
        turn.append(record)
        turn.shard.applied.append(record)
        replay(turn.shard, record)


def bump(turn: Turn, group: ConsumerGroup, reason: str, metadata_hash: int | None = None) -> None:
    """Raise the group's epoch, which triggers a new assignment."""
    if metadata_hash is None:
        metadata_hash = group.metadata_hash
    write(turn, ConsumerGroupStored(group.group_id, group.epoch + 1, metadata_hash))
    group.rebalance_count += 1
    group.rebalance_reason, group.rebalance_timestamp_ms = reason, turn.now_ms
