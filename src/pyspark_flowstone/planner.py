"""The planner of a streaming query on the driver: its start, the end of each micro-batch, and its tasks.

One planner lives as long as a run of the query, in a separate process, and is never called concurrently. Spark asks for
the next end only after the previous batch has finished, so the start that it passes is finished work. The planner then
commits it to the query's group, also for idle queries and for the last batch of queries that end.

Invariant: the plan for a start and an end does not depend on the planner's state. After a crash another planner gets
the same batch.
"""

from __future__ import annotations

import time

from flowstone.client import UnknownTopic
from flowstone.types import TopicPartition
from pyspark_flowstone.admission import admit
from pyspark_flowstone.connections import cluster_of
from pyspark_flowstone.groups import GroupProgress, warn_of_no_group
from pyspark_flowstone.loss import LossRule
from pyspark_flowstone.offsets import OffsetRange, Offsets, ranges_between, split
from pyspark_flowstone.options import SourceOptions
from pyspark_flowstone.positions import (
    existing_partitions,
    log_ends,
    log_starts,
    starting_offsets,
    starting_partitions,
)

# Spark polls an idle query 70 times a second. A delayed response costs nothing, because the wait
# ends with the first record. It is short because Spark polls the sources of a query one after the other.
IDLE_WAIT_S = 0.2
# A poll this soon after "nothing new" means that the query had no batch to run: no source had new records.
IDLE_GAP_S = 0.1
# How long new and deleted topics and partitions may stay undetected.
METADATA_AGE_MAX_S = 1.0


class StreamPlanner:
    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._cluster = cluster_of(options.bootstrap)
        self._rule = LossRule(is_failure=options.fail_on_data_loss)
        self._group = GroupProgress(options.bootstrap, options.group_id) if options.group_id is not None else None
        if self._group is None:
            warn_of_no_group()
        self._initial: Offsets | None = None
        self._target: Offsets | None = None
        self._ends: Offsets | None = None
        self._partitions: set[TopicPartition] = set()
        self._partitions_seen_s = float("-inf")
        self._found_nothing_s = float("-inf")
        self._moved_on_s = time.monotonic()

    def initial(self) -> Offsets:
        """Return the start of a query without a checkpoint; a second call returns the same offsets."""
        if self._initial is None:
            partitions = starting_partitions(self._cluster, self._options)
            self._initial = starting_offsets(self._cluster, self._options.stream_start(), partitions, self._options)
        return self._initial

    def finished(self, offsets: Offsets) -> None:
        if self._group is not None:
            self._group.commit(offsets)

    def close(self) -> None:
        if self._group is not None:
            self._group.close()

    def pin_end(self) -> None:
        """Fix the end of the query to the current ends of the partitions (trigger availableNow)."""
        self._target = self._current_ends()

    def latest_seen(self) -> Offsets | None:
        return self._ends

    def next_end(self, start: Offsets, *, is_limited: bool) -> Offsets:
        """Return the end of the next micro-batch; `start` if there is nothing to read."""
        self.finished(start)
        ends = self._target if self._target is not None else self._next_ends()
        known = self._known_start(start, ends)
        end = ends
        if is_limited:
            waited_ms = (time.monotonic() - self._moved_on_s) * 1000
            may_wait = self._target is None and waited_ms < self._options.trigger_delay_max_ms
            end = admit(self._cluster, self._options, known, ends, may_wait=may_wait)
        now = time.monotonic()
        if end == start:
            self._found_nothing_s = now
        else:
            self._moved_on_s = now
        return end

    def ranges(self, start: Offsets, end: Offsets) -> list[OffsetRange]:
        """Return the ranges of offsets that the tasks of a micro-batch read."""
        partitions = start.keys() & end.keys()
        went_back = sorted(each for each in partitions if start[each] > end[each])
        for partition in went_back:
            self._rule.beyond_end(partition, start[partition], end[partition])
        fresh = [*(end.keys() - start.keys()), *went_back]
        wanted = ranges_between({**start, **log_starts(self._cluster, fresh)}, end)
        first = log_starts(self._cluster, [each.partition for each in wanted])
        clipped = [self._rule.clip(each, first[each.partition], each.end) for each in wanted]
        return split(
            [each for each in clipped if each.offset_count > 0],
            parts_min=self._options.min_partitions,
            offsets_max=self._options.records_per_partition_max,
        )

    def _next_ends(self) -> Offsets:
        """Return the current ends of the partitions; wait for more records if the last ones were too few."""
        if self._ends is not None and time.monotonic() - self._found_nothing_s < IDLE_GAP_S:
            self._cluster.wait_for_records(self._ends, IDLE_WAIT_S, read_committed=self._options.read_committed)
        return self._current_ends()

    def _current_ends(self) -> Offsets:
        now = time.monotonic()
        if now - self._partitions_seen_s > METADATA_AGE_MAX_S:
            self._partitions = existing_partitions(self._cluster, self._options.subscription)
            self._partitions_seen_s = now
        try:
            self._ends = log_ends(self._cluster, self._partitions, self._options)
        except UnknownTopic:  # deleted a moment ago
            self._partitions = existing_partitions(self._cluster, self._options.subscription)
            self._ends = log_ends(self._cluster, self._partitions, self._options)
        return self._ends

    def _known_start(self, start: Offsets, ends: Offsets) -> Offsets:
        """Return `start` with new partitions added and deleted ones removed, after checking both for losses."""
        for partition in sorted(start.keys() - ends.keys()):
            self._rule.partition_gone(partition, start[partition])
        came = log_starts(self._cluster, ends.keys() - start.keys())
        for partition, log_start in sorted(came.items()):
            if log_start > 0:
                self._rule.overtaken(partition, 0, log_start)
        return {partition: start.get(partition, came.get(partition, 0)) for partition in ends}
