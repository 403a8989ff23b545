"""Group offsets for a topic's branch: copies of the offsets that groups have committed in the source.

A copy is not a commit: it needs no member, and a group with members keeps them and their generation. The offset of a
group that has read beyond the branch is the branch's end. Kafka's protocol has no such request.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from flowstone.coordinator.groups.records import NO_LEADER_EPOCH
from flowstone.coordinator.groups.state import Turn
from flowstone.types import TopicPartition


class BranchOffsetsRequest(NamedTuple):
    source: str
    target: str
    end_offsets: tuple[int, ...]  # the branch's, by partition


class BranchOffsetsResponse(NamedTuple):
    group_ids: tuple[str, ...]


def branch_offsets(turn: Turn, token: Any, request: BranchOffsetsRequest) -> None:
    group_ids: dict[str, None] = {}
    for index, end_offset in enumerate(request.end_offsets):
        source = TopicPartition(request.source, index)
        for group_id in turn.shard.offsets.group_ids_with(source):
            committed = turn.shard.offsets.of_group(group_id)[source]
            if committed.offset > end_offset:
                committed = committed._replace(offset=end_offset, leader_epoch=NO_LEADER_EPOCH)
            turn.append(committed._replace(topic=request.target, commit_timestamp_ms=turn.now_ms))
            group_ids[group_id] = None
    turn.reply(token, BranchOffsetsResponse(tuple(group_ids)))
