"""The metadata file's bytes: record batches of JSON records, and the handling of a file with a damaged end.

Pure. A batch that is not whole, or whose checksum is wrong, ends the file if nothing good comes after it; otherwise the
file is damaged and `StorageFault` says where.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.records import MetadataRecord, decode, encode
from flowstone.cluster.image.replay import snapshot
from flowstone.errors import StorageFault
from flowstone.wire.record_batch import (
    HEADER_BYTES,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
    CorruptBatch,
    Record,
    build_batch,
    checksum_matches,
    decode_records,
    parse_header,
)

SNAPSHOT_BATCH_RECORDS = 1000


def encode_batch(records: Sequence[MetadataRecord], base_offset: int, timestamp_ms: int) -> bytes:
    rows = [Record(base_offset + index, timestamp_ms, None, encode(record)) for index, record in enumerate(records)]
    return build_batch(rows, base_offset=base_offset, partition_leader_epoch=0)


def encode_snapshot(image: ClusterImage, timestamp_ms: int) -> bytes:
    """Return the whole file for an image: its last record has the offset of the last record that the image has
    applied.
    """
    records = snapshot(image)
    first_offset = image.version - len(records) + 1
    assert first_offset >= 0
    return b"".join(
        encode_batch(records[start : start + SNAPSHOT_BATCH_RECORDS], first_offset + start, timestamp_ms)
        for start in range(0, len(records), SNAPSHOT_BATCH_RECORDS)
    )


def read_batches(data: bytes) -> tuple[int, list[MetadataRecord], int]:
    """Return the first record's offset (0 if there is none), the records, and how many bytes of `data` they take."""
    records: list[MetadataRecord] = []
    position, first_offset = 0, 0
    next_offset: int | None = None
    while position < len(data):
        header = _good_header(data, position)
        if header is None:
            if (after := _good_batch_after(data, position)) is not None:
                raise StorageFault(f"damaged at byte {position}, yet whole again at byte {after}")
            break
        if next_offset is None:
            first_offset = header.base_offset
        elif header.base_offset != next_offset:
            # The checksum does not cover the offset, and no interrupted write leaves a correct checksum.
            raise StorageFault(f"offset {header.base_offset} at byte {position}, where {next_offset} should be")
        records += _decode_batch(data, position)
        next_offset = header.next_offset
        position += header.size_bytes
    return first_offset, records, position


def _decode_batch(data: bytes, position: int) -> list[MetadataRecord]:
    try:
        return [decode(record.value or b"") for record in decode_records(data, position)]
    except CorruptBatch as error:
        raise StorageFault(f"the batch at byte {position} is malformed: {error}") from error


def _good_header(data: bytes, position: int) -> BatchHeader | None:
    """Return the header of a whole batch with a correct checksum, or None."""
    try:
        header = parse_header(data, position)
    except CorruptBatch:
        return None
    return header if checksum_matches(data, position, header) else None


def _good_batch_after(data: bytes, position: int) -> int | None:
    """Return where the next good batch begins, whatever length the bytes before it claim: a flipped length hides a
    batch.
    """
    magic = bytes([MAGIC])
    at = data.find(magic, position + 1 + MAGIC_POSITION)
    while at != -1:
        start = at - MAGIC_POSITION
        if len(data) - start >= HEADER_BYTES and _good_header(data, start) is not None:
            return start
        at = data.find(magic, at + 1)
    return None
