"""Builder of one RecordBatch: the kernel's columns, their growth, and the arrays made of them.

Owns the limits on a RecordBatch's bytes. Columns with the same value in every row (topic, partition, timestamp type)
are created once and sliced. Buffers become arrays without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from flowstone.arrow.schema import CREATE_TIME, HEADER_TYPE, HEADERS, HEADERS_TYPE, LOG_APPEND_TIME, schema
from flowstone.kernel import RecordsStatus
from flowstone.kernel.columns import Allocate, Batch, BinaryBuffers, Columns, Full, decode_columns
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import BatchHeader, CorruptBatch

# The data of one column, and the headers, of one RecordBatch; a single record that has more gets one of its own. Of
# 1 KB records Spark takes batches of this size in three quarters of the time that batches of 16 MB need: the bytes are
# still in a cache when the JVM reads them.
DATA_BYTES_MAX = 4 << 20
HEADERS_MAX = 1 << 20
# Initial capacity of columns while nothing is known about the records.
DATA_BYTES_MIN = 64 << 10
HEADERS_MIN = 4 << 10

_LIMITS = {full: HEADERS_MAX if full is Full.HEADERS else DATA_BYTES_MAX for full in Full}


class RowBuilder:
    def __init__(self, partition: TopicPartition, columns: Sequence[str], rows_max: int, allocate: Allocate) -> None:
        self._schema, self._allocate = schema(columns), allocate
        self._partition, self._wanted, self._rows_max = partition, columns, rows_max
        self._constants: dict[str | int, Any] = {}
        self._timestamp_types: list[tuple[int, int]] = []  # runs of rows: the type, the rows at the run's end
        self._columns: Columns | None = None
        self._is_taken = False

    @property
    def row_count(self) -> int:
        return self._columns.call.row_count if self._columns and not self._is_taken else 0

    @property
    def is_full(self) -> bool:
        return self.row_count == self._rows_max

    def begin(self, header: BatchHeader, size_bytes: int, start: int, end: int) -> None:
        """Start a record batch: the next payloads belong to it, and offsets in [start, end) are selected."""
        if self._columns is None:
            self._columns = Columns(self._wanted, self._rows_max, self._guess(header, size_bytes), self._allocate)
        appended = header.uses_log_append_time
        self._columns.begin(
            Batch(
                size=size_bytes,
                record_count=header.record_count,
                base_offset=header.base_offset,
                last_offset_delta=header.last_offset_delta,
                base_timestamp=header.max_timestamp if appended else header.base_timestamp,
                uses_log_append_time=appended,
                start_offset=start,
                end_offset=end,
            )
        )

    def append(self, payload: Any, at: int) -> bool:
        """Append the batch's rows; return False if some did not fit: then call `take`, and `append` again."""
        columns = self._columns
        assert columns is not None
        call = columns.call
        if self._is_taken:
            self._renew(columns)
        while True:
            decode_columns(payload, at, columns)
            self._note_timestamp_type(LOG_APPEND_TIME if call.uses_log_append_time else CREATE_TIME)
            if call.status:
                raise _malformed(call.record_index, call.base_offset, RecordsStatus(call.status))
            if call.full == Full.NOT_FULL:
                return True
            if call.full == Full.ROWS or not _enlarge(columns):
                return False

    def take(self) -> Any:
        """Return the finished RecordBatch, which belongs to the caller; the next one starts with the next row."""
        columns = self._columns
        assert columns is not None
        batch = pa.RecordBatch.from_arrays([self._array(name, columns) for name in self._wanted], schema=self._schema)
        self._is_taken = True
        return batch

    def _renew(self, columns: Columns) -> None:
        """Replace the buffers when the next rows arrive, because by then the caller has released the previous batch."""
        # The next rows are likely to be like these.
        columns.renew({full: max(_minimum(full), columns.used(full) * 9 // 8) for full in _held(columns)})
        self._timestamp_types.clear()
        self._is_taken = False

    def _guess(self, header: BatchHeader, size_bytes: int) -> dict[Full, int]:
        """Return capacities estimated from the mean record size of the first batch; unused memory costs nothing."""
        data_bytes = size_bytes * self._rows_max // max(header.record_count, 1)
        guess = dict.fromkeys(Full, max(DATA_BYTES_MIN, min(data_bytes, DATA_BYTES_MAX)))
        guess[Full.HEADERS] = HEADERS_MIN
        return guess

    def _note_timestamp_type(self, timestamp_type: int) -> None:
        types, row_count = self._timestamp_types, self.row_count
        if types and types[-1][0] == timestamp_type:
            types[-1] = (timestamp_type, row_count)
        else:
            types.append((timestamp_type, row_count))

    def _array(self, name: str, columns: Columns) -> Any:
        rows = columns.call.row_count
        match name:
            case "key":
                return _binary_array(pa.binary(), rows, columns.binaries[Full.KEY])
            case "value":
                return _binary_array(pa.binary(), rows, columns.binaries[Full.VALUE])
            case "offset":
                return pa.Array.from_buffers(pa.int64(), rows, [None, columns.offsets], 0)
            case "timestamp":
                return pa.Array.from_buffers(self._schema.field(name).type, rows, [None, columns.timestamps], 0)
            case "topic":
                return self._constant(name, self._partition.topic, pa.string()).slice(0, rows)
            case "partition":
                return self._constant(name, self._partition.partition, pa.int32()).slice(0, rows)
            case "timestampType":
                return self._timestamp_type_array()
        assert name == HEADERS, name
        return _headers_array(rows, columns)

    def _constant(self, key: str | int, value: str | int, kind: Any) -> Any:
        if key not in self._constants:
            self._constants[key] = pa.repeat(pa.scalar(value, kind), self._rows_max)
        return self._constants[key]

    def _timestamp_type_array(self) -> Any:
        """Return the timestamp types, usually one value unless the topic's setting was changed."""
        runs, first = [], 0
        for timestamp_type, end in self._timestamp_types:
            runs.append(self._constant(timestamp_type, timestamp_type, pa.int32()).slice(0, end - first))
            first = end
        return runs[0] if len(runs) == 1 else pa.concat_arrays(runs)


def _malformed(record_index: int, base_offset: int, status: RecordsStatus) -> CorruptBatch:
    reason = status.name.lower().replace("_", " ")
    return CorruptBatch(f"record {record_index} of the batch at {base_offset} is malformed: {reason}")


def _minimum(full: Full) -> int:
    return HEADERS_MIN if full is Full.HEADERS else DATA_BYTES_MIN


def _held(columns: Columns) -> list[Full]:
    return [*columns.binaries, Full.HEADERS]


def _enlarge(columns: Columns) -> bool:
    """Enlarge the full column; return False if the RecordBatch would be too large and already has rows."""
    full = Full(columns.call.full)
    wanted, limit = columns.used(full) + columns.call.needed, _LIMITS[full]
    if wanted > limit and columns.call.row_count:
        return False
    columns.grow(full, max(wanted, min(2 * columns.capacity(full), limit)))
    return True


def _binary_array(kind: Any, count: int, column: BinaryBuffers) -> Any:
    state = column.state
    validity = column.validity if state.null_count else None
    data = pa.py_buffer(column.data).slice(0, state.size_bytes)
    return pa.Array.from_buffers(kind, count, [validity, column.offsets, data], state.null_count)


def _headers_array(rows: int, columns: Columns) -> Any:
    call = columns.call
    keys = _text_array(_binary_array(pa.binary(), call.header_count, columns.binaries[Full.HEADER_KEY]))
    values = _binary_array(pa.binary(), call.header_count, columns.binaries[Full.HEADER_VALUE])
    headers = pa.StructArray.from_arrays([keys, values], fields=list(HEADER_TYPE))
    validity = columns.header_validity if call.rows_without_headers else None
    buffers = [validity, columns.header_offsets]
    return pa.Array.from_buffers(HEADERS_TYPE, rows, buffers, call.rows_without_headers, children=[headers])


def _text_array(keys: Any) -> Any:
    """Return header keys as text: the protocol requires UTF-8, and invalid bytes are decoded as other clients do."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([key.decode(errors="replace") for key in keys.to_pylist()], pa.string())
