"""Encoding of a coordinator's records into batches of its internal topic, and decoding. Does not interpret records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from flowstone.coordinator.effects import TransactionalProducer
from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.wire.end_markers import EndMarker, read_end_marker
from flowstone.wire.record_batch import (
    CONTROL_FLAG,
    HEADER_BYTES,
    BatchHeader,
    CorruptBatch,
    Record,
    checksum_matches,
    decode_records,
    join_records,
    parse_header,
)


class RecordCodec(Protocol):
    """The conversion between one coordinator's typed records and their binary form."""

    def encode_all(self, records: Sequence[Any]) -> list[bytes]:
        """Return the records as they are stored in one batch; they have the batch's timestamp."""
        ...

    def decode(self, key: bytes, value: bytes | None) -> Any | None:
        """Return the typed record, or None for a type or version that a newer broker wrote, which is skipped.

        Raises StorageFault if the bytes are malformed.
        """
        ...


def encode_batches(
    codec: RecordCodec,
    records: Sequence[Any],
    timestamp_ms: int,
    batch_bytes_max: int,
    producer: TransactionalProducer | None = None,
) -> list[bytes]:
    """Return the records in order, in one batch if they fit; with a producer, as a part of its transaction.

    Raises ApiError if one record alone does not fit.
    """
    encoded = codec.encode_all(records)
    size_bytes = HEADER_BYTES + sum(map(len, encoded))
    if size_bytes <= batch_bytes_max:
        return [join_records(encoded, timestamp_ms, producer)]
    if len(records) == 1:
        message = f"a record of {len(encoded[0])} bytes exceeds max.message.bytes, {batch_bytes_max}"
        raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, message)
    middle = len(records) // 2
    halves = records[:middle], records[middle:]
    return [batch for half in halves for batch in encode_batches(codec, half, timestamp_ms, batch_bytes_max, producer)]


class Batch(NamedTuple):
    header: BatchHeader
    records: list[Record]  # empty for a control batch
    marker: EndMarker | None  # set for a control batch that ends a transaction


def decode_batches(data: bytes) -> Iterator[Batch]:
    """Yield each whole batch of the bytes that were read. Raises StorageFault if one is damaged."""
    view, position = memoryview(data), 0
    while len(data) - position >= HEADER_BYTES:
        try:
            header = parse_header(view, position)
            if position + header.size_bytes > len(data):
                return
            if not checksum_matches(view, position, header):
                raise StorageFault(f"the batch at offset {header.base_offset} does not match its checksum")
            if header.attributes & CONTROL_FLAG:
                yield Batch(header, [], read_end_marker(view, position, header))
            else:
                yield Batch(header, decode_records(view, position), None)
        except CorruptBatch as error:
            raise StorageFault(f"a batch of an internal topic is damaged: {error}") from error
        position += header.size_bytes
