"""Topics as a Spark data source and sink: `spark.read.format("flowstone")`, registered by being installed.

Spark imports every installed module whose name begins with `pyspark_` and takes its `DefaultSource`. So importing this
must never fail and costs little: what needs more is imported when the format is used.
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

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_flowstone.options import SourceOptions

PYSPARK_VERSION_MIN = (4, 2)


class DefaultSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "flowstone"

    def schema(self) -> StructType:
        """The columns asked for. Options are checked here, so that bad ones fail at `load()`."""
        from pyspark_flowstone.schema import spark_schema

        return spark_schema(self._source_options().columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_flowstone.schema import check_schema
        from pyspark_flowstone.source import make_reader

        options = self._source_options()
        check_schema(schema, options.columns)
        return make_reader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from pyspark_flowstone.schema import check_schema
        from pyspark_flowstone.stream import FlowstoneStreamReader

        options = self._source_options()
        check_schema(schema, options.columns)
        return FlowstoneStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        _check_pyspark_version()
        from pyspark_flowstone.sink import FlowstoneWriter

        return FlowstoneWriter(self.options, schema, overwrite)

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
