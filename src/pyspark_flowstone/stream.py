"""The stream reader: `spark.readStream.format("flowstone")`.

This class only adapts to Spark's interface, that of PySpark 4.2 and newer; `versions` adapts it to older ones.
`planner` plans, in one process per query, and `reader` reads, in the workers. Spark pickles the object to both, so it
contains only options until it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_flowstone.connections import settle_process
from pyspark_flowstone.offsets import JsonOffsets, QueryOffsets, query_offsets, to_json
from pyspark_flowstone.options import SourceOptions
from pyspark_flowstone.planner import StreamPlanner
from pyspark_flowstone.reader import read_range
from pyspark_flowstone.reporting import reported, reported_items
from pyspark_flowstone.values import OptionError
from pyspark_flowstone.versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

if TYPE_CHECKING:
    import pyarrow as pa

    Conversion = Callable[[pa.RecordBatch], pa.RecordBatch]


class FlowstoneStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, convert: Conversion | None = None) -> None:
        """Create a reader, whose tasks apply `convert` to what they read.

        Raises OptionError if an option does not apply to a stream.
        """
        options.stream_start()
        settle_process()
        self._options, self._convert = options, convert
        self._made: StreamPlanner | None = None

    @property
    def _planner(self) -> StreamPlanner:
        if self._made is None:
            self._made = StreamPlanner(self._options)
        return self._made

    @reported
    def initialOffset(self) -> JsonOffsets:  # noqa: N802 - Spark's names, here and below
        return to_json(*self._planner.initial())

    @reported
    def latestOffset(self, start: Any, limit: ReadLimit) -> JsonOffsets:  # noqa: N802
        is_limited = not isinstance(limit, ReadAllAvailable)
        return to_json(*self._planner.next_end(_offsets(start), is_limited=is_limited))

    @reported
    def first_end(self, limit: ReadLimit) -> JsonOffsets:
        """Return the end of a run's first micro-batch, without its start; see `versions.stream_reader`."""
        return to_json(*self._planner.first_end(is_limited=not isinstance(limit, ReadAllAvailable)))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return one of the configured limits. Spark supports only one per query; the planner applies all of them."""
        options = self._options
        if options.offsets_per_trigger_max is not None:
            return ReadMaxRows(options.offsets_per_trigger_max)
        if options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(options.bytes_per_trigger_max)
        if options.offsets_per_trigger_min is not None:
            return ReadMinRows(options.offsets_per_trigger_min)
        return ReadAllAvailable()

    @reported
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._planner.pin_end()

    def reportLatestOffset(self) -> JsonOffsets | None:  # noqa: N802
        latest = self._planner.latest_seen()
        return to_json(latest) if latest is not None else None

    @reported
    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        return [InputPartition(each) for each in self._planner.ranges(_offsets(start), _offsets(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        rows = read_range(self._options, partition.value)
        return reported_items(rows if self._convert is None else map(self._convert, rows))

    @reported
    def commit(self, end: Any) -> None:
        self._planner.finished(_offsets(end).offsets)

    def stop(self) -> None:
        if self._made is not None:
            self._made.close()


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader for a stream that cannot be read: each method that Spark may call first raises the reason."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    @reported
    def _refuse(self) -> NoReturn:
        raise OptionError(self._reason)

    def initialOffset(self) -> JsonOffsets:  # noqa: N802 - Spark's names, here and below
        self._refuse()

    def latestOffset(self, start: Any, limit: ReadLimit) -> JsonOffsets:  # noqa: N802
        self._refuse()

    def first_end(self, limit: ReadLimit) -> JsonOffsets:
        self._refuse()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._refuse()

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        self._refuse()


def _offsets(value: Any) -> QueryOffsets:
    """Return the offsets in a checkpoint, ours or the Kafka connector's. Raises OptionError if there are none."""
    try:
        return query_offsets(value)
    except ValueError as error:
        raise OptionError(
            f"checkpointLocation: the checkpoint holds no offsets of topics: {error}; start with a new one"
        ) from error
