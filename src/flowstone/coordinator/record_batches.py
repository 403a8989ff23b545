"""A coordinator's records as batches of its internal topic, and back. Knows nothing of what the records mean."""

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
    """Between one coordinator's typed records and their binary form."""

    def encode_all(self, records: Sequence[Any]) -> list[bytes]:
        """The records as they stand in one batch, which has their timestamp."""
        ...

    def decode(self, key: bytes, value: bytes | None) -> Any | None:
        """Return the typed record, or None for a type or version that a newer broker wrote, which is passed over.

        Raises StorageFault if the bytes make no sense.
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
        message = f"a record of {len(encoded[0])} bytes; {batch_bytes_max} are taken (max.message.bytes)"
        raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, message)
    middle = len(records) // 2
    halves = records[:middle], records[middle:]
    return [batch for half in halves for batch in encode_batches(codec, half, timestamp_ms, batch_bytes_max, producer)]


class Batch(NamedTuple):
    header: BatchHeader
    records: list[Record]  # none of a control batch
    marker: EndMarker | None  # of a control batch that is one


def decode_batches(data: bytes) -> Iterator[Batch]:
    """Yield each whole batch of a read. Raises StorageFault where it is damaged."""
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
