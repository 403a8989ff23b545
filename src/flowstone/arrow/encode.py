"""Encoder of the rows of a `pyarrow.RecordBatch` as record batches, each for one partition.

Owns the division of rows into batches: their size, header and compression. The kernel chooses each row's partition and
encodes the record. Rows of a partition keep their order.

The batches are ready for a producer: base offset 0, no producer id, CreateTime.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from flowstone.arrow.row_inputs import ColumnError, number_input, rows_of
from flowstone.errors import FlowstoneError
from flowstone.kernel.batches import BadRow, Built, NumberInput, RecordBuilder, Rows, RowStatus, Slots, spread_rows
from flowstone.types import TopicPartition
from flowstone.wire.compression import Codec, compress
from flowstone.wire.record_batch import (
    HEADER_BYTES,
    MAGIC,
    NO_PARTITION_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    encode_header,
)

# The default of max.message.bytes, and the size up to which a batch is filled;
# only a single larger record exceeds it.
BATCH_BYTES_MAX = 1_048_588
BATCH_BYTES_FILLED = 512 << 10
# glibc returns freed memory beyond twice the largest freed block to the system. Batches of megabytes are allocated
# and freed here, and fresh memory costs more than everything else: 1.4 instead of 5.6 M rows/s of 1 KB.
_LARGEST_BLOCK_BYTES = 24 << 20
# `slots_of` does not know the sizes of rows: without a key, each counts as a record's overhead of 20 bytes, so that
# 500 of them go to one partition before the next.
_KEYLESS_BYTES_MAX = 500 * 20


class RowRefused(FlowstoneError):
    """A row cannot become a record. `row` counts from the first row that the encoder received.

    The message is for users.
    """

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"row {row} cannot be written: {reason}")
        self.row = row


class EncodedBatch(NamedTuple):
    partition: TopicPartition
    batch: bytearray
    record_count: int


class Encoder:
    """Converter of rows to record batches; rows without a key fill a batch for one partition, then one for the next.

    The first such partition is `first_partition` modulo the topic's number of partitions. By default it depends on the
    clock, so that small batches of different encoders go to different partitions.
    """

    def __init__(
        self,
        *,
        compression: str = "none",
        batch_bytes_max: int = BATCH_BYTES_MAX,
        now_ms: int,
        first_partition: int | None = None,
        is_one_partition: bool = False,
    ) -> None:
        """Create an encoder; `now_ms` is the timestamp of rows without one. With `is_one_partition` all rows of a topic
        without a key go to its first partition. Raises ValueError if `compression` is unknown.
        """
        names = {codec.name.lower(): codec for codec in Codec}
        if compression not in names:
            raise ValueError(f"there is no compression {compression!r}, only {', '.join(names)}")
        self._codec, self._batch_bytes_max, self._now_ms = names[compression], batch_bytes_max, now_ms
        self._first_partition = now_ms if first_partition is None else first_partition
        self._scratch = bytearray(max(HEADER_BYTES, min(batch_bytes_max, BATCH_BYTES_FILLED)))
        self._keyless_bytes_max = sys.maxsize if is_one_partition else len(self._scratch) - HEADER_BYTES
        self._keyless: dict[str, tuple[int, int]] = {}
        self._rows_before = 0
        bytearray(_LARGEST_BLOCK_BYTES)  # freed at once, never touched

    def encode(self, rows: Any, partition_counts: Mapping[str, int], topic: str | None = None) -> list[EncodedBatch]:
        """Return the batches of all rows, grouped by partition.

        Columns are found by name: `value`, and optionally `key`, `partition`, `headers`, `timestamp` and `topic`. The
        argument `topic` overrides the column. Raises RowRefused if a row is invalid, and ColumnError if a column is.
        """
        if not rows.num_rows:
            return []
        topics, topic_numbers = ([topic], NumberInput()) if topic is not None else self._topics(rows)
        for name in topics:
            if partition_counts.get(name, 0) <= 0:
                raise RowRefused(self._rows_before + _first_of(rows, name, topic), f"there is no topic {name!r}")
        columns = rows_of(rows, topic_numbers)
        try:
            batches = list(self._batches(columns, topics, [partition_counts[name] for name in topics]))
        except BadRow as bad:
            name = topic if topic is not None else rows.column("topic")[bad.row].as_py()
            raise self._refused(bad, rows, name, partition_counts[name]) from None
        self._rows_before += rows.num_rows
        return batches

    def _topics(self, rows: Any) -> tuple[list[str], NumberInput]:
        """Return the distinct topics in the `topic` column, and for each row the index of its topic."""
        if "topic" not in rows.schema.names:
            raise ColumnError("rows need a column topic, or all of them one topic")
        column = rows.column("topic")
        if column.null_count:
            raise RowRefused(self._rows_before + pc.index(column.is_null(), True).as_py(), "it names no topic")
        if not pa.types.is_string(column.type):
            try:
                column = column.cast(pa.string())
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                raise ColumnError(f"the column topic is {column.type}, and has to be string") from None
        encoded = column.dictionary_encode()
        return encoded.dictionary.to_pylist(), number_input(encoded.indices)

    def _batches(self, rows: Rows, topics: list[str], partition_counts: list[int]) -> Iterator[EncodedBatch]:
        keyless = [self._keyless.get(name, (self._first_partition, 0)) for name in topics]
        slots = Slots(partition_counts, keyless, keyless_bytes_max=self._keyless_bytes_max)
        spread = spread_rows(rows, slots)
        builder = RecordBuilder(rows, spread, self._now_ms)
        names = (TopicPartition(*each) for each in _partitions(topics, partition_counts))
        first = 0
        for partition, end in zip(names, spread.slot_ends, strict=True):
            while first < end:
                batch, built = self._build(builder, first, end)
                yield EncodedBatch(partition, batch, built.record_count)
                first = built.next
        self._keyless |= dict(zip(topics, zip(slots.keyless_partitions, slots.keyless_bytes, strict=True), strict=True))

    def _build(self, builder: RecordBuilder, first: int, end: int) -> tuple[bytearray, Built]:
        scratch = self._scratch
        try:
            built = builder.build(first, end, scratch, HEADER_BYTES, len(scratch) - HEADER_BYTES)
        except BadRow as bad:
            if bad.status is not RowStatus.TOO_LARGE or HEADER_BYTES + bad.needed_bytes > self._batch_bytes_max:
                raise
            scratch = bytearray(HEADER_BYTES + bad.needed_bytes)  # a batch of its own
            built = builder.build(first, first + 1, scratch, HEADER_BYTES, bad.needed_bytes)
        return self._seal(memoryview(scratch)[: HEADER_BYTES + built.size_bytes], built), built

    def _seal(self, batch: memoryview, built: Built) -> bytearray:
        """Return the batch with its header, compressed unless compression makes it larger."""
        codec, payload = self._codec, batch[HEADER_BYTES:]
        if codec is not Codec.NONE:
            compressed = compress(codec, payload)
            if len(compressed) < len(payload):
                return bytearray().join((encode_header(_header(codec, built), compressed), compressed))
        batch[:HEADER_BYTES] = encode_header(_header(Codec.NONE, built), payload)
        return bytearray(batch)

    def _refused(self, bad: BadRow, rows: Any, topic: str, partition_count: int) -> RowRefused:
        match bad.status:
            case RowStatus.TOO_LARGE:
                size_bytes = HEADER_BYTES + bad.needed_bytes
                reason = f"it takes {size_bytes} bytes, and a batch has at most {self._batch_bytes_max}"
            case RowStatus.BAD_PARTITION:
                reason = _no_partition(topic, partition_count, rows.column("partition")[bad.row].as_py())
            case RowStatus.BAD_TIMESTAMP:
                reason = "its timestamp is before 1970"
            case RowStatus.NULL_HEADER_KEY:
                reason = "one of its headers has no key"
            case _:
                reason = "its column is damaged"
        return RowRefused(self._rows_before + bad.row, reason)


def slots_of(
    topic_numbers: Any, keys: Any, partitions: Any, partition_counts: Mapping[str, int], first_partition: int = 0
) -> Any:
    """Return the slot of each row as an int32 array: its partition's place among the partitions of all topics.

    A topic's number is its place in `partition_counts`. Rows get the partition in `partitions`, else the one of their
    key, as `Encoder` gives them. Rows without either are spread from `first_partition` on. Raises RowRefused if a row
    names a partition that its topic does not have.
    """
    values = pa.nulls(len(keys), pa.binary())
    rows = pa.RecordBatch.from_arrays([values, keys, partitions], ["value", "key", "partition"])
    if not rows.num_rows:
        return pa.array([], pa.int32())
    counts = list(partition_counts.values())
    slots = Slots(counts, [(first_partition, 0)] * len(counts), keyless_bytes_max=_KEYLESS_BYTES_MAX)
    try:
        spread = spread_rows(rows_of(rows, number_input(topic_numbers)), slots)
    except BadRow as bad:
        topic, count = list(partition_counts.items())[topic_numbers[bad.row].as_py()]
        raise RowRefused(bad.row, _no_partition(topic, count, partitions[bad.row].as_py())) from None
    return pa.Array.from_buffers(pa.int32(), rows.num_rows, [None, pa.py_buffer(spread.slot_of_row)])


def _no_partition(topic: str, count: int, partition: int) -> str:
    has = "1 partition, 0" if count == 1 else f"{count} partitions, 0 to {count - 1}"
    return f"topic {topic} has {has}, and no partition {partition}"


def _partitions(topics: list[str], partition_counts: list[int]) -> Iterator[tuple[str, int]]:
    for topic, count in zip(topics, partition_counts, strict=True):
        for partition in range(count):
            yield topic, partition


def _first_of(rows: Any, name: str, topic: str | None) -> int:
    first: int = pc.index(rows.column("topic"), name).as_py() if topic is None else 0
    return first


def _header(codec: Codec, built: Built) -> BatchHeader:
    return BatchHeader(
        base_offset=0,
        batch_length=0,
        partition_leader_epoch=NO_PARTITION_LEADER_EPOCH,
        magic=MAGIC,
        crc=0,
        attributes=codec,
        last_offset_delta=built.record_count - 1,
        base_timestamp=built.base_timestamp,
        max_timestamp=built.max_timestamp,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
        record_count=built.record_count,
    )
