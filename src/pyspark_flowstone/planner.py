"""The planner of a streaming query on the driver: its start, the end of each micro-batch, and its tasks.

One planner lives as long as a run of the query, in a separate process, and is never called concurrently. Spark asks for
the next end only after the previous batch has finished, so the start that it passes is finished work. The planner then
commits it to the query's group, also for idle queries and for the last batch of queries that end.

Invariant: the plan for a start and an end does not depend on the planner's state. After a crash another planner gets
the same batch.
"""

from __future__ import annotations

import time
from contextlib import suppress

from flowstone.client import UnknownTopic
from pyspark_flowstone.admission import admit
from pyspark_flowstone.connections import cluster_of
from pyspark_flowstone.groups import GroupProgress, warn_of_no_group
from pyspark_flowstone.loss import LossRule
from pyspark_flowstone.offsets import OffsetRange, Offsets, QueryOffsets, ranges_between, recreated, split
from pyspark_flowstone.options import SourceOptions
from pyspark_flowstone.positions import (
    Subscribed,
    log_ends,
    log_starts,
    starting_offsets,
    starting_partitions,
    subscribed_now,
)
from pyspark_flowstone.values import OptionError

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
        self._initial: QueryOffsets | None = None
        self._target: QueryOffsets | None = None
        self._ends: QueryOffsets | None = None
        self._subscribed = Subscribed(set(), {}, {})
        self._subscribed_seen_s = float("-inf")
        self._reported: set[tuple[str, bytes]] = set()  # topics that were created again, with their new ids
        self._found_nothing_s = float("-inf")
        self._moved_on_s = time.monotonic()

    def initial(self) -> QueryOffsets:
        """Return the start of a query without a checkpoint; a second call returns the same offsets."""
        if self._initial is None:
            partitions, ids, _ = starting_partitions(self._cluster, self._options)
            starts = starting_offsets(self._cluster, self._options.stream_start(), partitions, ids, self._options)
            self._initial = QueryOffsets(starts, ids)
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
        return self._ends.offsets if self._ends is not None else None

    def next_end(self, start: QueryOffsets, *, is_limited: bool) -> QueryOffsets:
        """Return the end of the next micro-batch; `start` if there is nothing to read."""
        ends = self._target if self._target is not None else self._next_ends()
        known = self._known_start(start, ends)
        if self._group is not None:
            self._group.commit(known)
        return self._end_after(start, known, ends, is_limited=is_limited)

    def first_end(self, *, is_limited: bool) -> QueryOffsets:
        """Return the end of the first micro-batch of a run, of which Spark does not tell the start.

        Commits nothing: the query may have a checkpoint, behind which the initial offsets are. Without a limit, the
        initial offsets are only kept, so that they are not after the end; what is wrong with them matters later.
        """
        if is_limited:
            start, ends = self.initial(), self._next_ends()
            return self._end_after(start, self._known_start(start, ends), ends, is_limited=True)
        with suppress(OptionError):
            self.initial()
        return self._current_ends()

    def _end_after(self, start: QueryOffsets, known: Offsets, ends: QueryOffsets, *, is_limited: bool) -> QueryOffsets:
        offsets = ends.offsets
        if is_limited:
            waited_ms = (time.monotonic() - self._moved_on_s) * 1000
            may_wait = self._target is None and waited_ms < self._options.trigger_delay_max_ms
            offsets = admit(self._cluster, self._options, known, offsets, may_wait=may_wait)
        read = {each.topic for each in offsets}
        before = {topic: topic_id for topic, topic_id in start.topic_ids.items() if topic in read}
        end = QueryOffsets(offsets, {**before, **ends.topic_ids})
        now = time.monotonic()
        if end == start:
            self._found_nothing_s = now
        else:
            self._moved_on_s = now
        return end

    def ranges(self, start: QueryOffsets, end: QueryOffsets) -> list[OffsetRange]:
        """Return the ranges of offsets that the tasks of a micro-batch read."""
        again = self._recreated(start, end) if start.topic_ids != end.topic_ids else set()
        before = {each: offset for each, offset in start.offsets.items() if each.topic not in again}
        went_back = sorted(each for each in before.keys() & end.offsets.keys() if before[each] > end.offsets[each])
        for partition in went_back:
            self._rule.beyond_end(partition, before[partition], end.offsets[partition])
        fresh = [*(end.offsets.keys() - before.keys()), *went_back]
        wanted = ranges_between({**before, **log_starts(self._cluster, fresh)}, end.offsets, end.topic_ids)
        first = log_starts(self._cluster, [each.partition for each in wanted])
        clipped = [self._rule.clip(each, first[each.partition], each.end) for each in wanted]
        return split(
            [each for each in clipped if each.offset_count > 0],
            parts_min=self._options.min_partitions,
            offsets_max=self._options.records_per_partition_max,
        )

    def _next_ends(self) -> QueryOffsets:
        """Return the current ends of the partitions; wait for more records if the last ones were too few."""
        if self._ends is not None and time.monotonic() - self._found_nothing_s < IDLE_GAP_S:
            committed = self._options.read_committed
            self._cluster.wait_for_records(self._ends.offsets, IDLE_WAIT_S, read_committed=committed)
        return self._current_ends()

    def _current_ends(self) -> QueryOffsets:
        """Return the ends, with ids that were looked up before them: later records are not taken for older topics'."""
        now = time.monotonic()
        if now - self._subscribed_seen_s > METADATA_AGE_MAX_S:
            self._subscribed = subscribed_now(self._cluster, self._options.subscription)
            self._subscribed_seen_s = now
        try:
            ends = log_ends(self._cluster, self._subscribed.partitions, self._options)
        except UnknownTopic:  # deleted a moment ago
            self._subscribed = subscribed_now(self._cluster, self._options.subscription)
            ends = log_ends(self._cluster, self._subscribed.partitions, self._options)
        self._ends = QueryOffsets(ends, self._subscribed.topic_ids)
        return self._ends

    def _recreated(self, start: QueryOffsets, end: QueryOffsets) -> set[str]:
        """Return the topics that were created again between two offsets, after reporting each of them once."""
        again = recreated(start.topic_ids, end.topic_ids)
        for topic in sorted(again):
            if (topic, end.topic_ids[topic]) not in self._reported:
                self._rule.recreated(topic, {each: at for each, at in start.offsets.items() if each.topic == topic})
                self._reported.add((topic, end.topic_ids[topic]))
        return again

    def _known_start(self, start: QueryOffsets, ends: QueryOffsets) -> Offsets:
        """Return where the partitions continue: new ones at their start; loss of what they had is reported."""
        again = self._recreated(start, ends) if start.topic_ids != ends.topic_ids else set()
        before = {each: offset for each, offset in start.offsets.items() if each.topic not in again}
        for partition in sorted(before.keys() - ends.offsets.keys()):
            self._rule.partition_gone(partition, before[partition])
        came = log_starts(self._cluster, ends.offsets.keys() - before.keys())
        for partition, log_start in sorted(came.items()):
            if log_start > 0:
                self._rule.overtaken(partition, 0, log_start)
        return {partition: before.get(partition, came.get(partition, 0)) for partition in ends.offsets}
