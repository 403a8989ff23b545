"""The messages between the broker and the process that compacts: plain values that JSON can represent."""

from __future__ import annotations

from typing import Any, NamedTuple

from flowstone.errors import FlowstoneError

CLEANED_SUFFIX = ".cleaned"


class CompactionError(FlowstoneError):
    """A log cannot be compacted: it is damaged, or exceeds the process's limits. The log is unchanged."""


class SourceSegment(NamedTuple):
    base_offset: int
    end_offset: int
    size_bytes: int


class CompactionJob(NamedTuple):
    """One log to compact. Groups are runs of segments that become one, from the log's first segment on."""

    directory: str
    groups: tuple[tuple[SourceSegment, ...], ...]
    first_dirty_offset: int
    end_offset: int  # nothing from here on may be changed
    kept_offsets: tuple[int, ...]  # sorted: a batch that ends with one is kept, even empty, for its producer's state
    kept_markers: tuple[tuple[int, int], ...]  # producer id and epoch: such markers are kept for the producers' state
    now_ms: int
    delete_horizon_ms: int  # tombstones in this compaction are kept until then
    index_interval_bytes: int
    map_bytes_max: int
    bytes_per_s: float  # of reads and writes together

    def to_json(self) -> list[Any]:
        return list(self)

    @classmethod
    def from_json(cls, values: list[Any]) -> CompactionJob:
        job = cls(*values)
        groups = tuple(tuple(SourceSegment(*segment) for segment in group) for group in job.groups)
        kept_markers = tuple((producer_id, epoch) for producer_id, epoch in job.kept_markers)
        return job._replace(groups=groups, kept_offsets=tuple(job.kept_offsets), kept_markers=kept_markers)


class CleanedSegment(NamedTuple):
    """The files of one group's new segment, all durable except for their names."""

    base_offset: int
    end_offset: int
    size_bytes: int
    offset_index_bytes: int
    time_index_bytes: int
    transaction_index_bytes: int | None  # None: no segment of the group has a transaction index
