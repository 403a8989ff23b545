"""The stream reader on PySpark 4.0 and 4.1, which do not tell a source where a micro-batch starts."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_flowstone.reporting import reported
from pyspark_flowstone.values import OptionError
from pyspark_flowstone.versions import TELLS_START, ReadAllAvailable, ReadLimit

if TYPE_CHECKING:
    import pyarrow as pa

LOGGER = logging.getLogger("pyspark_flowstone")

_WITHOUT_LIMIT = (
    "leave out the limit, or start the query without that trigger and end it with processAllAvailable() and stop(), or "
    "use PySpark 4.2 or newer"
)


def for_this_version(reader: LimitedReader) -> DataSourceStreamReader:
    """Return the reader of a stream in the form in which the installed PySpark calls it."""
    return reader if TELLS_START else StartTrackingReader(reader)  # type: ignore[return-value]


class LimitedReader(Protocol):
    """A stream reader of PySpark 4.2 and newer, with what `StartTrackingReader` needs besides."""

    def initialOffset(self) -> Any: ...  # noqa: N802 - Spark's names, here and below

    def latestOffset(self, start: Any, limit: ReadLimit) -> Any: ...  # noqa: N802

    def first_end(self, limit: ReadLimit) -> Any:
        """Return the end of the first micro-batch of a run, for a new query or one of which nothing is known."""

    def getDefaultReadLimit(self) -> ReadLimit: ...  # noqa: N802

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]: ...

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]: ...

    def commit(self, end: Any) -> None: ...

    def stop(self) -> None: ...


class StartTrackingReader(DataSourceStreamReader):
    """The stream reader on PySpark 4.0 and 4.1, which call `latestOffset()` without a start.

    The start of a micro-batch is the end of the one before, which is finished when Spark asks for another end. The
    order of the calls tells it also after a restart:

    - A run of a query with a checkpoint begins with `partitions(x, x)`, where x is the end of the last planned
      micro-batch. If that one was not finished, it follows, as `partitions(start, x)`.
    - A run without a checkpoint begins with `latestOffset()`. Then come `initialOffset()` and `partitions(initial, x)`.
    - With the trigger availableNow and `spark.sql.streaming.triggerAvailableNowWrapper.enabled`, `latestOffset()` comes
      before everything else, also if there is a checkpoint. Its result is the end of the run; Spark only shows later
      results. No limit can divide such a run, so that one is refused as soon as the order of the calls shows it.
    - Without that setting, availableNow is like once, and no order of calls shows either of them.
    """

    def __init__(self, reader: LimitedReader) -> None:
        self._reader = reader
        self._start: Any = None
        self._is_start_guessed = False  # by `latestOffset()` as the first call, until `partitions` shows the start
        self._is_initial_asked = False
        self._is_end_fixed = False
        self._is_warned = False

    def initialOffset(self) -> Any:  # noqa: N802 - Spark's names, here and below
        self._is_initial_asked = True
        return self._reader.initialOffset()

    @reported
    def latestOffset(self) -> Any:  # type: ignore[override]  # noqa: N802
        limit = self._reader.getDefaultReadLimit()
        self._warn_of_limit(limit)
        if self._start is None:
            self._start, self._is_start_guessed = self._reader.first_end(limit), True
            return self._start
        if self._is_start_guessed:
            self._fix_end(limit)
            return self._reader.first_end(limit)
        end = self._reader.latestOffset(self._start, limit)
        if not self._is_end_fixed:
            self._start = end
        return end

    @reported
    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        if self._is_start_guessed and not self._is_initial_asked:
            self._fix_end(self._reader.getDefaultReadLimit())
        self._start, self._is_start_guessed = end, False
        return self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)

    def commit(self, end: Any) -> None:
        self._reader.commit(end)

    def stop(self) -> None:
        self._reader.stop()

    def _fix_end(self, limit: ReadLimit) -> None:
        """Record that the run ends where its first end was. Raises OptionError if it has a limit."""
        if not isinstance(limit, ReadAllAvailable):
            raise OptionError(
                f"maxOffsetsPerTrigger, maxBytesPerTrigger, minOffsetsPerTrigger: PySpark {pyspark.__version__} reads "
                f"in a single micro-batch with the trigger availableNow, which cannot be limited; {_WITHOUT_LIMIT}"
            )
        self._is_end_fixed = True

    def _warn_of_limit(self, limit: ReadLimit) -> None:
        """Warn once that with availableNow or once, which the source cannot detect, a limit ends the query early."""
        if not isinstance(limit, ReadAllAvailable) and not self._is_warned:
            self._is_warned = True
            LOGGER.warning(
                "flowstone: with the trigger availableNow or once, PySpark %s ends a query after one micro-batch, and "
                "its limit leaves the other records to the next run; %s",
                pyspark.__version__,
                _WITHOUT_LIMIT,
            )
