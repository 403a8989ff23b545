"""The batch reader: `spark.read.format("flowstone")`.

Offsets are settled once, when Spark plans the query; its tasks read those and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from flowstone.client import Cluster
from flowstone.types import TopicPartition
from pyspark_flowstone.connections import cluster_of
from pyspark_flowstone.loss import LossRule
from pyspark_flowstone.offsets import OffsetRange, split
from pyspark_flowstone.options import SourceOptions
from pyspark_flowstone.positions import (
    ending_offsets,
    log_ends,
    log_starts,
    starting_offsets,
    starting_partitions,
)
from pyspark_flowstone.reader import read_range
from pyspark_flowstone.values import OptionError

if TYPE_CHECKING:
    import pyarrow as pa


def make_reader(options: SourceOptions) -> DataSourceReader:
    return FlowstoneReader(options)


class FlowstoneReader(DataSourceReader):
    def __init__(self, options: SourceOptions) -> None:
        """OptionError if an option has no meaning for a batch read."""
        self._options = options
        self._starting, self._ending = options.batch_bounds()

    def partitions(self) -> list[InputPartition]:
        cluster = cluster_of(self._options.bootstrap)
        ranges = self._ranges(cluster, starting_partitions(cluster, self._options))
        parts = split(
            ranges, parts_min=self._options.min_partitions, offsets_max=self._options.records_per_partition_max
        )
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Where there is nothing to read, Spark makes up a partition without a value.
        return read_range(self._options, partition.value) if partition.value is not None else iter(())

    def _ranges(self, cluster: Cluster, partitions: set[TopicPartition]) -> list[OffsetRange]:
        options, rule = self._options, LossRule(is_failure=self._options.fail_on_data_loss)
        starts = starting_offsets(cluster, self._starting, partitions, options)
        ends = ending_offsets(cluster, self._ending, partitions, options)
        first, last = log_starts(cluster, partitions), log_ends(cluster, partitions, options)
        ranges = []
        for partition in sorted(partitions):
            if starts[partition] > ends[partition] and options.ending is not None:
                raise OptionError(
                    f"startingOffsets: {partition} would start at {starts[partition]}, after its end, {ends[partition]}"
                )
            wanted = OffsetRange(partition, starts[partition], ends[partition])
            ranges.append(rule.clip(wanted, first[partition], last[partition]))
        return [each for each in ranges if each.offset_count > 0]
