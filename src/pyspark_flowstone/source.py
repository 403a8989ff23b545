"""The batch reader: `spark.read.format("flowstone")`.

The offsets are determined once, when Spark plans the query; its tasks read exactly these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from flowstone.client import Cluster
from flowstone.types import TopicPartition
from pyspark_flowstone.connections import cluster_of
from pyspark_flowstone.loss import LossRule
from pyspark_flowstone.offsets import OffsetRange, TopicIds, split
from pyspark_flowstone.options import SourceOptions
from pyspark_flowstone.positions import (
    ending_offsets,
    log_ends,
    log_starts,
    offsets_at_time,
    starting_offsets,
    starting_partitions,
)
from pyspark_flowstone.pushdown import Narrowing, narrowing
from pyspark_flowstone.reader import read_range
from pyspark_flowstone.reporting import reported, reported_items
from pyspark_flowstone.values import OptionError
from pyspark_flowstone.versions import HAS_FILTER_PUSHDOWN, Filter, warn_of_no_pushdown

if TYPE_CHECKING:
    import pyarrow as pa


def make_reader(options: SourceOptions) -> DataSourceReader:
    if not options.pushes_filters:
        return FlowstoneReader(options)
    if not HAS_FILTER_PUSHDOWN:
        warn_of_no_pushdown()
        return FlowstoneReader(options)
    return FilteringReader(options)


class FlowstoneReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        """Create a reader. Raises OptionError if an option does not apply to a batch read."""
        self._options = options
        self._starting, self._ending = options.batch_bounds()
        self._narrowing = Narrowing()

    @reported
    def partitions(self) -> list[InputPartition]:
        cluster = cluster_of(self._options.bootstrap)
        subscribed, topic_ids, _ = starting_partitions(cluster, self._options)
        kept = {each for each in subscribed if self._narrowing.keeps_partition(*each)}
        ranges = self._narrow(cluster, self._ranges(cluster, subscribed, kept, topic_ids))
        parts = split(
            ranges, parts_min=self._options.min_partitions, offsets_max=self._options.records_per_partition_max
        )
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # If there is nothing to read, Spark creates a partition without a value.
        if partition.value is None:
            return iter(())
        return reported_items(read_range(self._options, partition.value))

    def _ranges(
        self, cluster: Cluster, subscribed: set[TopicPartition], kept: set[TopicPartition], topic_ids: TopicIds
    ) -> list[OffsetRange]:
        """Return the ranges of the partitions in `kept`; options refer to all subscribed partitions."""
        options, rule = self._options, LossRule(is_failure=self._options.fail_on_data_loss)
        starts = starting_offsets(cluster, self._starting, subscribed, topic_ids, options)
        ends = ending_offsets(cluster, self._ending, subscribed, options)
        first, last = log_starts(cluster, kept), log_ends(cluster, kept, options)
        ranges = []
        for partition in sorted(kept):
            if starts[partition] > ends[partition] and options.ending is not None:
                raise OptionError(
                    f"startingOffsets: {partition} would start at {starts[partition]}, after its end, {ends[partition]}"
                )
            wanted = OffsetRange(partition, starts[partition], ends[partition], topic_ids.get(partition.topic))
            ranges.append(rule.clip(wanted, first[partition], last[partition]))
        return ranges

    def _narrow(self, cluster: Cluster, ranges: list[OffsetRange]) -> list[OffsetRange]:
        narrowing = self._narrowing
        ranges = [narrowing.narrow(each) for each in ranges]
        first_ms, end_ms = narrowing.timestamp_first_ms, narrowing.timestamp_end_ms
        if first_ms is not None and first_ms > 0:
            found = offsets_at_time(cluster, [each.partition for each in ranges], first_ms)
            ranges = [each._replace(start=max(each.start, found.get(each.partition, each.end))) for each in ranges]
        if end_ms is not None and end_ms > 0 and self._options.timestamps_are_ordered:
            found = offsets_at_time(cluster, [each.partition for each in ranges], end_ms)
            ranges = [each._replace(end=min(each.end, found.get(each.partition, each.end))) for each in ranges]
        return [each for each in ranges if each.offset_count > 0]


class FilteringReader(FlowstoneReader):
    """A batch reader with filter pushdown, separate because Spark refuses it while pushdown is disabled."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        self._narrowing = narrowing(filters)
        return filters
