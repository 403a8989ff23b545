"""The differences between the supported PySpark versions, 4.0 to 4.3. No other package asks for the version.

It offers the interface of the newest version and implements what an older one lacks:

- 4.0 hands Arrow batches to the writer of a stream only if it is also a `DataSourceArrowWriter`. It has no filter
  pushdown, no `arrow_udf` and no `repartitionById`.
- 4.0 and 4.1 call `latestOffset()` without the start and the limit, and know no trigger availableNow of a source:
  `stream_reader` keeps the start itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, Any

import pyspark

PYSPARK_VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
PYSPARK_VERSION_MIN = (4, 0)

if PYSPARK_VERSION < PYSPARK_VERSION_MIN:
    raise ImportError(
        f"the format flowstone needs PySpark 4.0 or newer, and this is {pyspark.__version__}: install pyspark>=4.0, or "
        'use format("kafka"), the Kafka connector of Spark, which reads and writes Flowstone too'
    )

from pyspark.errors import StreamingQueryException  # noqa: E402
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter  # noqa: E402
from pyspark.sql.types import StructField, StructType  # noqa: E402

from pyspark_flowstone.values import OptionError  # noqa: E402

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import DataType

    ArrowMap = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

LOGGER = logging.getLogger("pyspark_flowstone")

HAS_FILTER_PUSHDOWN = PYSPARK_VERSION >= (4, 1)
HAS_ARROW_UDF = PYSPARK_VERSION >= (4, 1)
TELLS_START = PYSPARK_VERSION >= (4, 2)  # to `latestOffset`, and the trigger availableNow to the source

if HAS_FILTER_PUSHDOWN:
    from pyspark.sql.datasource import (
        DataSourceStreamArrowWriter,
        EqualNullSafe,
        EqualTo,
        Filter,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        LessThan,
        LessThanOrEqual,
    )
else:

    class DataSourceStreamArrowWriter(DataSourceArrowWriter, DataSourceStreamWriter):  # type: ignore[no-redef]
        """The writer of a stream to which PySpark 4.0 hands Arrow batches, because of its first base class."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
            raise NotImplementedError

        def commit(self, messages: list[Any], batchId: int) -> None:  # type: ignore[override]  # noqa: N803
            """Do nothing on commit, like the default method of newer PySpark versions."""

        def abort(self, messages: list[Any], batchId: int) -> None:  # type: ignore[override]  # noqa: N803
            """Do nothing on abort, like the default method of newer PySpark versions."""

    class Filter:  # type: ignore[no-redef]
        """A stand-in for pyspark's `Filter`, which PySpark 4.0 does not have."""

        attribute: tuple[str, ...]
        value: Any

    class EqualTo(Filter):  # type: ignore[no-redef]
        pass

    class EqualNullSafe(Filter):  # type: ignore[no-redef]
        pass

    class GreaterThan(Filter):  # type: ignore[no-redef]
        pass

    class GreaterThanOrEqual(Filter):  # type: ignore[no-redef]
        pass

    class In(Filter):  # type: ignore[no-redef]
        pass

    class LessThan(Filter):  # type: ignore[no-redef]
        pass

    class LessThanOrEqual(Filter):  # type: ignore[no-redef]
        pass


if TELLS_START:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
else:

    @dataclass
    class ReadLimit:  # type: ignore[no-redef]
        """A limit on a micro-batch, which `stream_reader` passes on instead of Spark."""

        count: int = 0

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        pass

    class ReadMaxBytes(ReadLimit):  # type: ignore[no-redef]
        pass

    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        pass

    class ReadMinRows(ReadLimit):  # type: ignore[no-redef]
        pass

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        pass


__all__ = [
    "HAS_FILTER_PUSHDOWN",
    "TELLS_START",
    "DataSourceStreamArrowWriter",
    "EqualNullSafe",
    "EqualTo",
    "Filter",
    "GreaterThan",
    "GreaterThanOrEqual",
    "In",
    "LessThan",
    "LessThanOrEqual",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
    "arrow_udf",
    "map_arrow",
    "once_settings",
    "repartition_by_id",
    "start_once",
    "warn_of_no_pushdown",
    "with_arrow_column",
]


def warn_of_no_pushdown() -> None:
    """Warn that a read without pushdown returns the same rows but takes longer."""
    LOGGER.warning(
        "flowstone: filterPushdown has no effect on PySpark %s, which applies filters only after reading; use "
        "startingTimestamp and endingTimestamp, or PySpark 4.1 or newer",
        pyspark.__version__,
    )


def with_arrow_column(
    df: DataFrame, name: str, function: Callable[..., pa.Array], arguments: Sequence[Column], returned: DataType
) -> DataFrame:
    """Return the rows with a column that a function computes from Arrow arrays in a Python worker."""
    if HAS_ARROW_UDF:
        return df.withColumn(name, arrow_udf(function, returned)(*arguments))
    schema = StructType([*df.schema.fields, StructField(name, returned)])
    named = [each.alias(f"{name}_{number}") for number, each in enumerate(arguments)]
    return map_arrow(df.select("*", *named), _appending(function, len(df.columns)), schema)


def _appending(function: Callable[..., pa.Array], kept: int) -> ArrowMap:
    """Return the function for Spark that replaces the columns after the first `kept` by the result."""

    def append(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for rows in batches:
            names = [*rows.schema.names[:kept], "result"]
            yield pa.RecordBatch.from_arrays([*rows.columns[:kept], function(*rows.columns[kept:])], names=names)

    return append


def map_arrow(rows: DataFrame, function: ArrowMap, schema: StructType | str) -> DataFrame:
    """Return what `DataFrame.mapInArrow` does, which wants pandas to be installed although it does not use it."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
    from pyspark.sql.udf import UserDefinedFunction
    from pyspark.util import PythonEvalType

    if not isinstance(rows, ClassicDataFrame):  # of Spark Connect
        return rows.mapInArrow(function, schema)
    udf = UserDefinedFunction(function, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column = udf(*[rows[f"`{name}`"] for name in rows.columns])
    return ClassicDataFrame(rows._jdf.mapInArrow(column._jc, False, None), rows.sparkSession)


def arrow_udf(function: Callable[..., pa.Array], returned: DataType) -> Any:
    """Return Spark's `arrow_udf` of the function. Raises OptionError on PySpark 4.0, which has none.

    It is declared nondeterministic: Spark would otherwise push filters on the result below it, and compute it twice.
    """
    if not HAS_ARROW_UDF:
        raise OptionError(f"functions on Arrow arrays need PySpark 4.1 or newer, and this is {pyspark.__version__}")
    from pyspark.sql.pandas.functions import arrow_udf as of_spark

    return of_spark(function, returned).asNondeterministic()  # type: ignore[call-overload]


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of Spark's columns, with timestamps in UTC, which older versions always take."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC") if TELLS_START else to_arrow_schema(schema)


def repartition_by_id(df: DataFrame, count: int, column: str) -> DataFrame:
    """Return the rows in `count` partitions, all of one value of the column in one of them.

    PySpark 4.0 distributes the values by their hash, which may put several into one partition.
    """
    if hasattr(df, "repartitionById"):
        return df.repartitionById(count, df[column])
    return df.repartition(count, df[column])


def start_once(writer: DataStreamWriter, *, is_limited: bool) -> StreamingQuery:
    """Start a query that reads what there is and ends, within its limits on every version.

    Before PySpark 4.2 a query with limits has no trigger for that. It is stopped once it finds nothing more to read,
    so that it also reads records that are written meanwhile.
    """
    if TELLS_START or not is_limited:
        return writer.trigger(availableNow=True).start()
    query = writer.start()
    Thread(target=_stop_when_read, args=(query,), name="flowstone-once", daemon=True).start()
    return query


def _stop_when_read(query: StreamingQuery) -> None:
    with suppress(StreamingQueryException):  # which the query keeps
        query.processAllAvailable()
    query.stop()


def once_settings() -> dict[str, str]:
    """Return the settings of Spark with which availableNow reads beyond a micro-batch that has to be repeated."""
    return {} if TELLS_START else {"spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true"}
