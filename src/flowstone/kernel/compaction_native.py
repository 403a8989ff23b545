"""The loops of compaction through ctypes, with the behaviour of compaction_twin.py.

Importing this module raises ImportError if the library is missing or lacks the calls. Every call releases the GIL and
works on memory that its object owns, so an object must be used by one thread at a time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from flowstone.kernel.compaction_contract import (
    HEADER_BYTES,
    NO_TIMESTAMP,
    OUTPUT_PER_INPUT_MAX,
    SLOT_BYTES,
    TIME_ENTRY,
    BadRecord,
    BatchFields,
    Damage,
    FilteredRecords,
    Stop,
    Walk,
    check_output,
    check_position,
    check_taken,
    map_capacity,
    not_indexable,
)
from flowstone.kernel.native import _run as run
from flowstone.kernel.native import releasing_library as library
from flowstone.types import Bytes

_STOPS, _DAMAGES = tuple(Stop), tuple(Damage)
_Long, _Pointer = ctypes.c_int64, ctypes.c_void_p


def _fields(pointers_and_longs: str) -> list[tuple[str, Any]]:
    """Return the ctypes fields of a C struct from their names, in order; a name that starts with * is a pointer."""
    return [(name.lstrip("*"), _Pointer if name[0] == "*" else _Long) for name in pointers_and_longs.split()]


class _MapFields(ctypes.Structure):
    _fields_ = [
        *_fields("*slots slot_count used used_max"),
        ("seed", ctypes.c_uint64 * 2),
    ]


class _MapBatchesCall(ctypes.Structure):
    _fields_ = _fields(
        "*map position size next_offset end_offset from_offset to_offset stop_attributes mapped_end stop damage needed"
    )


class _MapRecordsCall(ctypes.Structure):
    _fields_ = _fields("*map size record_count base_offset last_offset from_offset to_offset mapped_end stop")


class _FilterFields(ctypes.Structure):
    _fields_ = _fields("*map mapped_end now_ms delete_horizon_ms *kept_offsets kept_offset_count")


class _FilterBatchesCall(ctypes.Structure):
    _fields_ = _fields(
        "*filter position size next_offset end_offset keeps_last stop_attributes "
        "*output output_capacity output_size stop damage needed"
    )


class _FilterRecordsCall(ctypes.Structure):
    _fields_ = _fields(
        "*filter size record_count base_offset last_offset base_timestamp attributes is_marker "
        "*output output_capacity stop changed output_size kept_count max_timestamp has_new_horizon"
    )


class _IndexBatchesCall(ctypes.Structure):
    _fields_ = _fields(
        "size base_offset file_position interval_bytes "
        "unindexed_bytes newest_timestamp newest_offset indexed_timestamp "
        "*offset_entries *time_entries offset_entries_size time_entries_size stop"
    )


def _function(name: str) -> Any:
    try:
        function = library[name]
    except AttributeError as error:
        raise ImportError(f"the native kernel cannot compact: {error}") from error
    function.argtypes, function.restype = (_Pointer, _Pointer), None
    return function


_map_batches = _function("flowstone_map_batches")
_map_records = _function("flowstone_map_records")
_filter_batches = _function("flowstone_filter_batches")
_filter_records = _function("flowstone_filter_records")
_index_batches = _function("flowstone_index_batches")


class OffsetMap:
    def __init__(self, memory: memoryview, seed: bytes) -> None:
        """Take ownership of `memory`, which must be writable and all zeros."""
        self.capacity = map_capacity(len(memory), seed)
        slot_count = len(memory) // SLOT_BYTES
        self._memory = (ctypes.c_char * len(memory)).from_buffer(memory)
        seeds = (ctypes.c_uint64 * 2).from_buffer_copy(seed)
        self.fields = _MapFields(ctypes.addressof(self._memory), slot_count, 0, self.capacity, seeds)
        self._batches = _MapBatchesCall(map=ctypes.addressof(self.fields))
        self._records = _MapRecordsCall(map=ctypes.addressof(self.fields))
        self.mapped_end = 0

    def __len__(self) -> int:
        used: int = self.fields.used
        return used

    def map_batches(
        self,
        buffer: Bytes,
        position: int,
        next_offset: int,
        end_offset: int,
        *,
        from_offset: int,
        to_offset: int,
        stop_attributes: int,
    ) -> Walk:
        check_position(buffer, position)
        call = self._batches
        call.position, call.size = position, len(buffer)
        call.next_offset, call.end_offset = next_offset, end_offset
        call.from_offset, call.to_offset, call.stop_attributes = from_offset, to_offset, stop_attributes
        call.mapped_end = self.mapped_end
        run(_map_batches, buffer, ctypes.byref(call))
        self.mapped_end = call.mapped_end
        return Walk(_STOPS[call.stop], call.position, call.next_offset, call.needed, _DAMAGES[call.damage])

    def map_records(self, payload: Bytes, batch: BatchFields, from_offset: int, to_offset: int) -> Stop:
        call = self._records
        call.size, call.record_count = len(payload), batch.record_count
        call.base_offset, call.last_offset = batch.base_offset, batch.last_offset
        call.from_offset, call.to_offset, call.mapped_end = from_offset, to_offset, self.mapped_end
        run(_map_records, payload, ctypes.byref(call))
        if call.stop == Stop.DAMAGED:
            raise BadRecord
        self.mapped_end = call.mapped_end
        return Stop(call.stop)


class RecordFilter:
    def __init__(
        self,
        offset_map: OffsetMap,
        *,
        now_ms: int,
        delete_horizon_ms: int,
        kept_offsets: Sequence[int],
        output_bytes: int,
    ) -> None:
        self._map = offset_map  # keeps the map's memory alive
        self._kept_offsets = frozenset(kept_offsets)
        self._kept_array = (_Long * len(kept_offsets))(*kept_offsets)
        self._fields = _FilterFields(
            ctypes.addressof(offset_map.fields),
            offset_map.mapped_end,
            now_ms,
            delete_horizon_ms,
            ctypes.addressof(self._kept_array),
            len(kept_offsets),
        )
        self._batches = _FilterBatchesCall(filter=ctypes.addressof(self._fields))
        self._output = bytearray()
        self.reserve(output_bytes)
        self._scratch = bytearray()

    @property
    def free_bytes(self) -> int:
        used_bytes: int = self._batches.output_size
        return len(self._output) - used_bytes

    def filter_batches(
        self,
        buffer: Bytes,
        position: int,
        next_offset: int,
        end_offset: int,
        *,
        keeps_last: bool,
        stop_attributes: int,
    ) -> Walk:
        check_position(buffer, position)
        call = self._batches
        call.position, call.size = position, len(buffer)
        call.next_offset, call.end_offset = next_offset, end_offset
        call.keeps_last, call.stop_attributes = keeps_last, stop_attributes
        run(_filter_batches, buffer, ctypes.byref(call))
        return Walk(_STOPS[call.stop], call.position, call.next_offset, call.needed, _DAMAGES[call.damage])

    def filter_records(self, payload: Bytes, batch: BatchFields, *, is_marker: bool = False) -> FilteredRecords:
        if len(self._scratch) < OUTPUT_PER_INPUT_MAX * len(payload):
            self._scratch = bytearray(OUTPUT_PER_INPUT_MAX * len(payload))
        scratch = (ctypes.c_char * len(self._scratch)).from_buffer(self._scratch)
        call = _FilterRecordsCall(
            ctypes.addressof(self._fields),
            len(payload),
            batch.record_count,
            batch.base_offset,
            batch.last_offset,
            batch.base_timestamp,
            batch.attributes,
            is_marker,
            ctypes.addressof(scratch),
            len(self._scratch),
        )
        run(_filter_records, payload, ctypes.byref(call))
        if call.stop == Stop.DAMAGED:
            raise BadRecord
        kept = memoryview(self._scratch)[: call.output_size]
        return FilteredRecords(
            kept, call.kept_count, call.max_timestamp, bool(call.has_new_horizon), bool(call.changed)
        )

    def is_kept(self, last_offset: int) -> bool:
        return last_offset in self._kept_offsets

    def reserve(self, size_bytes: int) -> None:
        check_taken(self._batches.output_size)
        if size_bytes > len(self._output):
            self._output = bytearray(size_bytes)
            self._output_export = (ctypes.c_char * size_bytes).from_buffer(self._output)
            self._batches.output = ctypes.addressof(self._output_export)
            self._batches.output_capacity = size_bytes

    def put(self, batch: Bytes) -> None:
        begin = self._batches.output_size
        end = begin + len(batch)
        check_output(self.free_bytes, len(batch))
        self._output[begin:end] = batch
        self._batches.output_size = end

    def take(self) -> memoryview:
        size, self._batches.output_size = self._batches.output_size, 0
        return memoryview(self._output)[:size]


class IndexBuilder:
    def __init__(self, base_offset: int, interval_bytes: int) -> None:
        self.offset_entries, self.time_entries = bytearray(), bytearray()
        self._call = _IndexBatchesCall(
            base_offset=base_offset,
            interval_bytes=interval_bytes,
            newest_timestamp=NO_TIMESTAMP,
            newest_offset=base_offset,
            indexed_timestamp=NO_TIMESTAMP,
        )

    def add(self, batches: Bytes) -> None:
        call, entries_bytes = self._call, (len(batches) // HEADER_BYTES + 1) * TIME_ENTRY.size
        offset_entries, time_entries = (
            ctypes.create_string_buffer(entries_bytes),
            ctypes.create_string_buffer(entries_bytes),
        )
        call.size = len(batches)
        call.offset_entries, call.time_entries = ctypes.addressof(offset_entries), ctypes.addressof(time_entries)
        run(_index_batches, batches, ctypes.byref(call))
        if call.stop == Stop.DAMAGED:
            raise not_indexable(call.file_position)
        self.offset_entries += memoryview(offset_entries)[: call.offset_entries_size]
        self.time_entries += memoryview(time_entries)[: call.time_entries_size]

    def close(self) -> None:
        call = self._call
        if call.newest_timestamp > call.indexed_timestamp:
            self.time_entries += TIME_ENTRY.pack(call.newest_timestamp, call.newest_offset - call.base_offset)
            call.indexed_timestamp = call.newest_timestamp
