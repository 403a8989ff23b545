"""The loops of compaction in Python: the reference for the native code and the fallback without the library.

key_map.c and compaction.c implement the same in C; the tests verify that both give equal results for generated and
damaged batches.

Compaction has two passes. `OffsetMap` collects the last offset of every key; `RecordFilter` copies batches without the
records that were overwritten according to the map. Kafka's rules:

- a record stays if it is its key's last, or lies beyond what was mapped; one without a key does not;
- a tombstone that stays gives its batch a delete horizon, in place of the base timestamp; when that time has passed,
  the batch's tombstones go;
- a batch without records goes, unless its producer's sequence numbers or its segment's end depend on it.

`memory` limits the number of keys to what the native map can hold; this Python map needs about six times as much
memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from hashlib import blake2b
from itertools import islice

from flowstone.kernel.compaction_batches import Batch, Record, as_long, next_batch, records_of, restamped
from flowstone.kernel.compaction_contract import (
    CODEC_MASK,
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER_BYTES,
    INDEXED_MAX,
    NO_TIMESTAMP,
    OFFSET_ENTRY,
    OUTPUT_PER_INPUT_MAX,
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
from flowstone.types import Bytes

_WINDOW = 16  # records that are read before the first of them is mapped


class OffsetMap:
    def __init__(self, memory: memoryview, seed: bytes) -> None:
        """Create an empty map; `memory` limits the number of keys, and a random `seed` prevents constructed
        collisions.
        """
        self.capacity = map_capacity(len(memory), seed)
        self.mapped_end = 0  # all requested records below this offset are mapped
        self._seed = seed
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

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
        """Add the records from `from_offset` to `to_offset` to the map, batch by batch.

        The batches' offsets must be at least `next_offset` and below `end_offset`. The `Walk` says where and why the
        pass ended: at the end, or at a batch that it cannot handle.
        """
        check_position(buffer, position)
        while True:
            batch = next_batch(buffer, position, next_offset, end_offset)
            if isinstance(batch, Walk):
                return batch
            if batch.base_offset >= to_offset:
                self.mapped_end = to_offset
                return Walk(Stop.DONE, position, next_offset, batch.size_bytes, Damage.NO_DAMAGE)
            if batch.attributes & stop_attributes:
                return Walk(Stop.TRANSACTIONAL, position, next_offset, batch.size_bytes, Damage.NO_DAMAGE)
            if batch.attributes & CONTROL_FLAG:
                self.mapped_end = batch.last_offset + 1
            elif batch.attributes & CODEC_MASK and batch.record_count:
                return Walk(Stop.COMPRESSED, position, next_offset, batch.size_bytes, Damage.NO_DAMAGE)
            else:
                payload = memoryview(buffer)[position + HEADER_BYTES : position + batch.size_bytes]
                try:
                    stop = self.map_records(payload, batch.fields(), from_offset, to_offset)
                except BadRecord:
                    return Walk(Stop.DAMAGED, position, next_offset, batch.size_bytes, Damage.BAD_RECORD)
                if stop is not Stop.MORE:
                    return Walk(stop, position, next_offset, batch.size_bytes, Damage.NO_DAMAGE)
            next_offset = batch.last_offset + 1
            position += batch.size_bytes

    def map_records(self, payload: Bytes, batch: BatchFields, from_offset: int, to_offset: int) -> Stop:
        """Add the records of one decompressed batch; return MORE, or FULL if the record at `mapped_end` does not fit.

        Raises BadRecord if a record is malformed.
        """
        records = records_of(payload, batch)
        while window := list(islice(records, _WINDOW)):
            for record in window:
                offset = batch.base_offset + record.offset_delta
                if record.key is None or not from_offset <= offset < to_offset:
                    continue
                key_hash = self._hash(record.key)
                if key_hash not in self._offsets and len(self._offsets) == self.capacity:
                    self.mapped_end = offset
                    return Stop.FULL
                self._offsets[key_hash] = offset
        self.mapped_end = min(batch.last_offset + 1, to_offset)
        return Stop.MORE

    def last_offset(self, key: Bytes) -> int:
        """Return the last offset of the key, or -1 if it is not in the map."""
        return self._offsets.get(self._hash(key), -1)

    def _hash(self, key: Bytes) -> bytes:
        return blake2b(key, digest_size=16, key=self._seed).digest()


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
        """Create a filter. `kept_offsets` are sorted last offsets of batches that are kept even if they become
        empty.
        """
        self._map = offset_map
        self._mapped_end = offset_map.mapped_end
        self._now_ms = now_ms
        self._delete_horizon_ms = delete_horizon_ms
        self._kept_offsets = kept_offsets
        self._output_bytes = output_bytes
        self._output = bytearray()

    @property
    def free_bytes(self) -> int:
        return self._output_bytes - len(self._output)

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
        """Copy the records that are kept to the output, batch by batch.

        The `Walk` says where and why the pass ended: at the end, or at a batch that it cannot handle.
        """
        check_position(buffer, position)
        while True:
            batch = next_batch(buffer, position, next_offset, end_offset)
            if isinstance(batch, Walk):
                return batch
            stop = self._filter_batch(buffer, position, batch, keeps_last, stop_attributes)
            if stop is not Stop.MORE:
                damage = Damage.BAD_RECORD if stop is Stop.DAMAGED else Damage.NO_DAMAGE
                return Walk(stop, position, next_offset, batch.size_bytes, damage)
            next_offset = batch.last_offset + 1
            position += batch.size_bytes

    def _filter_batch(self, buffer: Bytes, position: int, batch: Batch, keeps_last: bool, stop_attributes: int) -> Stop:
        end = position + batch.size_bytes
        if self.free_bytes < OUTPUT_PER_INPUT_MAX * batch.size_bytes:
            return Stop.OUTPUT_FULL
        as_is = memoryview(buffer)[position:end]
        if batch.base_offset >= self._mapped_end:
            self._output += as_is
            return Stop.MORE
        if batch.attributes & stop_attributes:
            return Stop.TRANSACTIONAL
        if batch.attributes & CODEC_MASK and batch.record_count:
            return Stop.COMPRESSED
        try:
            filtered = self.filter_records(as_is[HEADER_BYTES:], batch.fields())
        except BadRecord:
            return Stop.DAMAGED
        stays_empty = (keeps_last and end == len(buffer)) or self.is_kept(batch.last_offset)
        if not filtered.changed and (batch.record_count or stays_empty):
            self._output += as_is
        elif filtered.kept_count:
            self._output += batch.rewritten(filtered, self._delete_horizon_ms)
        elif stays_empty:
            self._output += batch.emptied()
        return Stop.MORE

    def filter_records(self, payload: Bytes, batch: BatchFields, *, is_marker: bool = False) -> FilteredRecords:
        """Return the records of a batch to keep. With `is_marker`, keep all and set a delete horizon.

        Raises BadRecord if a record is malformed.
        """
        keeps_tombstones = not batch.attributes & DELETE_HORIZON_FLAG or self._now_ms < batch.base_timestamp
        kept = [
            record
            for record in records_of(payload, batch)
            if is_marker or self._stays(record, batch.base_offset + record.offset_delta, keeps_tombstones)
        ]
        sets_horizon = is_marker or (
            any(not record.has_value for record in kept)
            and not batch.attributes & DELETE_HORIZON_FLAG
            and batch.last_offset < self._mapped_end
        )
        timestamps = [as_long(batch.base_timestamp + record.timestamp_delta) for record in kept]
        out = bytearray()
        for record, timestamp in zip(kept, timestamps, strict=True):
            out += restamped(record, as_long(timestamp - self._delete_horizon_ms)) if sets_horizon else record.encoded
        changed = sets_horizon or len(kept) != batch.record_count
        return FilteredRecords(out, len(kept), max(timestamps, default=NO_TIMESTAMP), sets_horizon, changed)

    def _stays(self, record: Record, offset: int, keeps_tombstones: bool) -> bool:
        if offset >= self._mapped_end:
            return True
        if record.key is None or not (record.has_value or keeps_tombstones):
            return False
        return offset >= self._map.last_offset(record.key)

    def is_kept(self, last_offset: int) -> bool:
        at = bisect_left(self._kept_offsets, last_offset)
        return at < len(self._kept_offsets) and self._kept_offsets[at] == last_offset

    def reserve(self, size_bytes: int) -> None:
        """Enlarge the output to at least `size_bytes`. The caller must have taken all bytes before."""
        check_taken(len(self._output))
        self._output_bytes = max(self._output_bytes, size_bytes)

    def put(self, batch: Bytes) -> None:
        """Append a batch that the caller has filtered itself; the output must have enough space."""
        check_output(self.free_bytes, len(batch))
        self._output += batch

    def take(self) -> memoryview:
        """Return the bytes written since the last call. They are valid until the next call of any method."""
        output, self._output = self._output, bytearray()
        return memoryview(output)


class IndexBuilder:
    """Builder of a segment's index files from its batches; log/segments/index_pair.py defines the formats."""

    def __init__(self, base_offset: int, interval_bytes: int) -> None:
        self.offset_entries, self.time_entries = bytearray(), bytearray()
        self._base_offset, self._interval_bytes = base_offset, interval_bytes
        self._position = self._unindexed_bytes = 0
        self._newest_timestamp = self._indexed_timestamp = NO_TIMESTAMP
        self._newest_offset = base_offset

    def add(self, batches: Bytes) -> None:
        """Index whole batches that follow the previous ones. Raises ValueError if an entry cannot represent one."""
        at = 0
        while at < len(batches):
            batch = self._read(batches, at)
            if batch.record_count and batch.max_timestamp > self._newest_timestamp:
                self._newest_timestamp, self._newest_offset = batch.max_timestamp, batch.last_offset
            if self._unindexed_bytes > self._interval_bytes:
                self.offset_entries += OFFSET_ENTRY.pack(batch.last_offset - self._base_offset, self._position)
                self._add_time_entry()
                self._unindexed_bytes = 0
            self._unindexed_bytes += batch.size_bytes
            self._position += batch.size_bytes
            at += batch.size_bytes

    def _read(self, batches: Bytes, at: int) -> Batch:
        left_bytes = len(batches) - at
        if left_bytes >= HEADER_BYTES:
            batch = Batch(batches, at)
            indexed = 0 <= batch.last_offset - self._base_offset <= INDEXED_MAX and self._position <= INDEXED_MAX
            if HEADER_BYTES <= batch.size_bytes <= left_bytes and indexed:
                return batch
        raise not_indexable(self._position)

    def close(self) -> None:
        """Add the entry for the newest timestamp, with which every time index ends."""
        self._add_time_entry()

    def _add_time_entry(self) -> None:
        if self._newest_timestamp > self._indexed_timestamp:
            self.time_entries += TIME_ENTRY.pack(self._newest_timestamp, self._newest_offset - self._base_offset)
            self._indexed_timestamp = self._newest_timestamp
