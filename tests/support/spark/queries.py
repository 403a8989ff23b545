"""Streaming queries that read what is there and end, on every supported PySpark.

Before PySpark 4.2 the trigger availableNow reads a single micro-batch. A query with limits is therefore started without
it, and is stopped once it has processed everything.
"""

from __future__ import annotations

from typing import Any, cast

from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_flowstone.versions import TELLS_START


class _EndsWhenRead:
    def __init__(self, query: StreamingQuery) -> None:
        self._query = query

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802 - Spark's name
        """Process everything. Raises StreamingQueryException if the query fails."""
        try:
            self._query.processAllAvailable()
        finally:
            self._query.stop()
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._query, name)


def start_available(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query that has read everything when `awaitTermination` returns."""
    if TELLS_START:
        return writer.trigger(availableNow=True).start()
    return cast(StreamingQuery, _EndsWhenRead(writer.start()))
