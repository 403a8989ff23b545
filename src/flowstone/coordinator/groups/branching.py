"""Group offsets for a topic's branch: copies of the offsets that groups have committed in the source.

A copy is not a commit: it needs no member, and a group with members keeps them and their generation. The offset of a
group that has read beyond the branch is the branch's end. Kafka's protocol has no such request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from flowstone.coordinator.groups.records import NO_LEADER_EPOCH, OffsetCommitted
from flowstone.coordinator.groups.state import Turn


class BranchOffsetsRequest(NamedTuple):
    """Copy the offsets of these groups in the partitions from `first_partition` on."""

    source: str
    target: str
    group_ids: tuple[str, ...]
    end_offsets: tuple[int, ...]  # the branch's, by partition
    first_partition: int = 0


class BranchOffsetsResponse(NamedTuple):
    # The groups of which offsets were copied.
    group_ids: tuple[str, ...]


class CountOffsetsResponse(NamedTuple):
    # How many offsets each group of the shard has, in all topics.
    counts: tuple[tuple[str, int], ...]


def branch_offsets(turn: Turn, token: Any, request: BranchOffsetsRequest) -> None:
    group_ids = []
    for group_id in request.group_ids:
        copied = False
        for index, committed in _offsets(turn.shard.offsets.of_group(group_id), request):
            end_offset = request.end_offsets[index - request.first_partition]
            if committed.offset > end_offset:
                committed = committed._replace(offset=end_offset, leader_epoch=NO_LEADER_EPOCH)
            turn.append(committed._replace(topic=request.target, commit_timestamp_ms=turn.now_ms))
            copied = True
        if copied:
            group_ids.append(group_id)
    turn.reply(token, BranchOffsetsResponse(tuple(group_ids)))


def count_offsets(turn: Turn, token: Any, _: None) -> None:
    turn.reply(token, CountOffsetsResponse(tuple(turn.shard.offsets.counts())))


def _offsets(
    offsets: Mapping[tuple[str, int], OffsetCommitted], request: BranchOffsetsRequest
) -> list[tuple[int, OffsetCommitted]]:
    """Return a group's offsets in the wanted partitions of the source; iterates over the shorter list."""
    first, source = request.first_partition, request.source
    wanted = range(first, first + len(request.end_offsets))
    if len(offsets) < len(wanted):
        return [(index, each) for (topic, index), each in offsets.items() if topic == source and index in wanted]
    return [(index, offsets[source, index]) for index in wanted if (source, index) in offsets]
