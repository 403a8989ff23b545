"""Topics as tables for a SQL engine that scans Arrow datasets, such as DuckDB.

A broker is contacted only when the engine scans, and only the requested columns are read. A topic's offsets are
determined at its first scan, so a query that scans it twice sees the same records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyarrow import dataset

from flowstone.arrow.read import Places, Range, read_ranges, settle
from flowstone.arrow.schema import COLUMNS, HEADERS, schema
from flowstone.client import Cluster
from flowstone.errors import FlowstoneError

_TEXT_COLUMNS = ("key", "value")


class TopicView(dataset.Dataset):  # type: ignore[misc]
    """The records of a topic between two positions.

    Keys and values are text unless `binary` is set; bytes that are not UTF-8 become replacement characters. `failure`
    is the error that ended a scan early, because the engine would replace its message.
    """

    def __init__(
        self,
        connect: Callable[[], Cluster],
        topic: str,
        start: Places,
        end: Places,
        *,
        binary: bool,
        read_committed: bool,
    ) -> None:
        """Create a view that has read nothing. `connect` is called for each scan: an engine may run several at once."""
        self._connect, self._topic, self._start, self._end = connect, topic, start, end
        self._binary, self._read_committed = binary, read_committed
        self.failure: FlowstoneError | None = None
        columns = schema((*COLUMNS, HEADERS))
        self._columns = columns if binary else _text_schema(columns)

    @cached_property
    def _ranges(self) -> list[Range]:
        with self._connect() as cluster:
            return settle(cluster, self._topic, self._start, self._end, read_committed=self._read_committed)

    @property
    def schema(self) -> Any:
        return self._columns

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> Any:
        # The engine does not say which columns a filter needs.
        names = self._columns.names if columns is None or filter is not None else list(columns)
        found = pa.schema([self._columns.field(name) for name in names])
        return dataset.Scanner.from_batches(self._read(names), schema=found, columns=columns, filter=filter)

    def _read(self, names: Sequence[str]) -> Iterator[Any]:
        try:
            for batch in read_ranges(self._connect(), self._ranges, names, read_committed=self._read_committed):
                yield batch if self._binary else _as_text(batch)
        except FlowstoneError as error:
            self.failure = error
            raise


def _text_schema(columns: Any) -> Any:
    return pa.schema([each.with_type(pa.string()) if each.name in _TEXT_COLUMNS else each for each in columns])


def _as_text(batch: Any) -> Any:
    try:
        return batch.cast(_text_schema(batch.schema))
    except pa.ArrowInvalid:
        arrays = [
            _replace(array) if field.name in _TEXT_COLUMNS else array
            for field, array in zip(batch.schema, batch.columns, strict=True)
        ]
        return pa.record_batch(arrays, schema=_text_schema(batch.schema))


def _replace(array: Any) -> Any:
    values = (None if value is None else value.decode(errors="replace") for value in array.to_pylist())
    return pa.array(values, pa.string(), size=len(array))
