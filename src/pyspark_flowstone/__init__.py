"""Topics as a Spark data source and sink: `spark.read.format("flowstone")`, registered by being installed.

Spark imports every installed module whose name begins with `pyspark_` and takes its `DefaultSource`. So importing this
must never fail and costs little: what needs more is imported when the format is used.

Mistakes are reported as early as Spark allows, because the earlier they are found, the shorter Spark's message is
(`reporting` has the messages). `load()` calls `schema`; nothing else runs before a query starts. A batch query calls
`reader` and `writer` when it is planned, a streaming query `streamReader` when it starts and `streamWriter` with its
first micro-batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyspark
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
    from pyspark.sql.types import StructType

    from pyspark_flowstone.options import SourceOptions

PYSPARK_VERSION_MIN = (4, 2)


class DefaultSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "flowstone"

    @reported
    def schema(self) -> StructType:
        """Return the columns asked for, after options and topics were checked: `load()` fails if one is wrong."""
        from pyspark_flowstone.positions import check_subscription
        from pyspark_flowstone.schema import spark_schema

        options = self._source_options()
        check_subscription(options)
        return spark_schema(options.columns)

    @reported
    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_flowstone.schema import check_schema
        from pyspark_flowstone.source import make_reader

        options = self._source_options()
        check_schema(schema, options.columns)
        return make_reader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader, or one that raises from every method: Spark loses an exception that is raised here.

        The process that plans a stream (`python_streaming_source_runner` of PySpark 4.2 and 4.3) calls `stop()` of a
        reader that it does not have then, and reports that as the error.
        """
        from pyspark_flowstone.schema import check_schema
        from pyspark_flowstone.stream import FlowstoneStreamReader, RefusedStreamReader

        try:
            options = self._source_options()
            check_schema(schema, options.columns)
            return FlowstoneStreamReader(options)
        except OptionError as error:
            return RefusedStreamReader(str(error))

    @reported
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        _check_pyspark_version()
        from pyspark_flowstone.sink import FlowstoneWriter

        return FlowstoneWriter(self.options, schema, overwrite)

    @reported
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        _check_pyspark_version()
        from pyspark_flowstone.sink import FlowstoneStreamWriter

        return FlowstoneStreamWriter(self.options, schema)

    def _source_options(self) -> SourceOptions:
        _check_pyspark_version()
        from pyspark_flowstone.options import parse_options

        return parse_options(self.options)


def _check_pyspark_version() -> None:
    """Before 4.2 a Python source had no limits on a batch and was not told where one starts."""
    version = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if version < PYSPARK_VERSION_MIN:
        needed = ".".join(map(str, PYSPARK_VERSION_MIN))
        raise RuntimeError(f"the format flowstone needs PySpark {needed} or newer, and this is {pyspark.__version__}")
