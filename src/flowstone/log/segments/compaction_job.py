"""What the broker tells the process that compacts, and what it hears from it. Plain values, which JSON can carry."""

from __future__ import annotations

from typing import Any, NamedTuple

from flowstone.errors import FlowstoneError

CLEANED_SUFFIX = ".cleaned"


class CompactionError(FlowstoneError):
    """A log cannot be compacted as it is: it is damaged, or does not fit the process's bounds. It is as it was."""


class SourceSegment(NamedTuple):
    base_offset: int
    end_offset: int
    size_bytes: int


class CompactionJob(NamedTuple):
    """One log to compact. Groups are runs of segments that become one, from the log's first segment on."""

    directory: str
    groups: tuple[tuple[SourceSegment, ...], ...]
    first_dirty_offset: int
    end_offset: int  # nothing from here on may be touched
    kept_offsets: tuple[int, ...]  # sorted: batches that end with them stay, be they empty, for their producers' sake
    kept_markers: tuple[tuple[int, int], ...]  # producer id and epoch: such markers stay, for the same reason
    now_ms: int
    delete_horizon_ms: int  # until when tombstones stay that meet compaction now
    index_interval_bytes: int
    map_bytes_max: int
    bytes_per_s: float  # read and written

    def to_json(self) -> list[Any]:
        return list(self)

    @classmethod
    def from_json(cls, values: list[Any]) -> CompactionJob:
        job = cls(*values)
        groups = tuple(tuple(SourceSegment(*segment) for segment in group) for group in job.groups)
        kept_markers = tuple((producer_id, epoch) for producer_id, epoch in job.kept_markers)
        return job._replace(groups=groups, kept_offsets=tuple(job.kept_offsets), kept_markers=kept_markers)


class CleanedSegment(NamedTuple):
    """The files of one group's new segment, all durable but for their names."""

    base_offset: int
    end_offset: int
    size_bytes: int
    offset_index_bytes: int
    time_index_bytes: int
    transaction_index_bytes: int | None  # None: there is none, as none of the group's segments has one
