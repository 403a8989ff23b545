"""A coordinator's records as batches of its internal topic, and back. Knows nothing of what the records mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from flowstone.coordinator.effects import CoordinatorRecord
from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.wire.record_batch import (
    HEADER_BYTES,
    CorruptBatch,
    Record,
    checksum_matches,
    decode_records,
    encode_record,
    join_records,
    parse_header,
)


class RecordCodec(Protocol):
    """Between one coordinator's typed records and their binary form."""

    def encode(self, record: Any) -> CoordinatorRecord: ...

    def decode(self, key: bytes, value: bytes | None) -> Any | None:
        """None for a record to pass over. StorageFault if it makes no sense."""
        ...


def encode_batches(records: Iterable[CoordinatorRecord], timestamp_ms: int, batch_bytes_max: int) -> list[bytes]:
    """The records in order, in one batch if they fit. ApiError if one alone does not."""
    batches: list[bytes] = []
    batch: list[bytes] = []
    count, size_bytes = 0, HEADER_BYTES
    for key, value in records:
        record = encode_record(count, 0, key, value)
        size_bytes += len(record)
        if size_bytes > batch_bytes_max:
            if batch:
                batches.append(join_records(batch, timestamp_ms))
                batch, record = [], encode_record(0, 0, key, value)
                count, size_bytes = 0, HEADER_BYTES + len(record)
            if size_bytes > batch_bytes_max:
                message = f"a record of {len(record)} bytes; {batch_bytes_max} are taken (max.message.bytes)"
                raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, message)
        batch.append(record)
        count += 1
    if batch:
        batches.append(join_records(batch, timestamp_ms))
    return batches


class Batch(NamedTuple):
    next_offset: int
    records: list[Record]


def decode_batches(data: bytes) -> Iterator[Batch]:
    """Each whole batch of a read. StorageFault where it is damaged."""
    view, position = memoryview(data), 0
    while len(data) - position >= HEADER_BYTES:
        try:
            header = parse_header(view, position)
            if position + header.size_bytes > len(data):
                return
            if not checksum_matches(view, position, header):
                raise StorageFault(f"the batch at offset {header.base_offset} does not match its checksum")
            yield Batch(header.next_offset, decode_records(view, position))
        except CorruptBatch as error:
            raise StorageFault(f"a batch of an internal topic is damaged: {error}") from error
        position += header.size_bytes
