"""The Spark data source and sink for topics: `spark.read.format("flowstone")`, available once installed.

Spark imports every installed module whose name starts with `pyspark_` and registers its `DefaultSource`. This import
must therefore never fail and must be cheap: everything else is imported when the format is used.

Errors are reported as early as Spark allows, because Spark's message is shorter then (`reporting` creates the
messages). `load()` calls only `schema`. A batch query calls `reader` or `writer` when it is planned, a streaming query
`streamReader` when it starts and `streamWriter` with its first micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyspark_flowstone.versions  # noqa: F401 - first: it says what to do on a PySpark that is too old

# isort: split
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from pyspark_flowstone.reporting import reported
from pyspark_flowstone.values import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from pyspark_flowstone.foreach_batch import TopicBatches
    from pyspark_flowstone.options import SourceOptions


class DefaultSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "flowstone"

    @reported
    def schema(self) -> StructType:
        """Return the requested columns after checking options and topics, so that `load()` reports errors."""
        from pyspark_flowstone.positions import check_subscription
        from pyspark_flowstone.schema import spark_schema, with_options

        options = self._source_options()
        check_subscription(options)
        return with_options(spark_schema(options.columns), self.options)

    @reported
    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_flowstone.schema import check_schema
        from pyspark_flowstone.source import make_reader

        options = self._source_options(schema)
        check_schema(schema, options.columns)
        return make_reader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader, or one whose methods raise the error: Spark drops an exception raised here.

        In that case the planning process (`python_streaming_source_runner` of PySpark 4.0 to 4.3) calls `stop()` of a
        reader that does not exist, and reports that as the error.
        """
        from pyspark_flowstone.schema import check_schema
        from pyspark_flowstone.stream import FlowstoneStreamReader, RefusedStreamReader
        from pyspark_flowstone.versions.stream_reader import for_this_version

        try:
            options = self._source_options(schema)
            check_schema(schema, options.columns)
            return for_this_version(FlowstoneStreamReader(options))
        except OptionError as error:
            return for_this_version(RefusedStreamReader(str(error)))

    @reported
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_flowstone.exactly_once_sink import batch_writer
        from pyspark_flowstone.schema import sink_options_of

        return batch_writer(sink_options_of(self.options, schema), schema, overwrite)

    @reported
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from pyspark_flowstone.exactly_once_sink import stream_writer
        from pyspark_flowstone.schema import sink_options_of

        return stream_writer(sink_options_of(self.options, schema), schema)

    def _source_options(self, schema: StructType | None = None) -> SourceOptions:
        """Return the parsed options. `schema` is a table's, which has options too."""
        from pyspark_flowstone.options import parse_options
        from pyspark_flowstone.schema import source_options

        return parse_options(source_options(self.options, schema))


def exactly_once(
    df: DataFrame, *, bootstrap: str, topic: str | Sequence[str], connect_timeout_s: float = 5.0
) -> DataFrame:
    """Return the rows prepared for a sink with `delivery=exactly-once`; see `placement.exactly_once`."""
    from pyspark_flowstone import placement

    return placement.exactly_once(df, bootstrap=bootstrap, topic=topic, connect_timeout_s=connect_timeout_s)


def to_topic(options: Mapping[str, object], *, topics: Sequence[str] = ()) -> TopicBatches:
    """Return a function for `foreachBatch` that writes micro-batches to a topic; see `foreach_batch.to_topic`."""
    from pyspark_flowstone import foreach_batch

    return foreach_batch.to_topic(options, topics=topics)
