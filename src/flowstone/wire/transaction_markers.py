"""Transaction markers: control batches of one record that end a producer's transaction in a partition.

Owns the layout of the marker's key (version, type) and value (version, coordinator epoch), which is Kafka's. The
batch's header has the producer. Other control batches exist in Kafka and are not markers.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from flowstone.wire.record_batch import BatchHeader, CorruptBatch, Record, build_batch

ABORT_TYPE, COMMIT_TYPE = 0, 1
_VERSION = 0
_KEY = Struct(">hh")
_VALUE = Struct(">hi")


class TransactionMarker(NamedTuple):
    producer_id: int
    producer_epoch: int
    is_commit: bool
    coordinator_epoch: int


def encode_marker(marker: TransactionMarker, timestamp_ms: int) -> bytes:
    """Return the control batch of a marker, with base offset 0."""
    key = _KEY.pack(_VERSION, COMMIT_TYPE if marker.is_commit else ABORT_TYPE)
    value = _VALUE.pack(_VERSION, marker.coordinator_epoch)
    return build_batch(
        [Record(0, timestamp_ms, key, value)],
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def decode_marker(header: BatchHeader, records: Sequence[Record]) -> TransactionMarker | None:
    """Return the marker in a control batch, or None if it holds another control record, or none (compaction took it).

    Raises CorruptBatch if the record is too short for what it says it is.
    """
    if not records:
        return None
    _offset, _timestamp, key, value, _headers = records[0]
    if key is None or len(key) < _KEY.size:
        raise CorruptBatch(f"the control record at offset {header.base_offset} has no type")
    _version, type_ = _KEY.unpack_from(key)
    if type_ not in (ABORT_TYPE, COMMIT_TYPE):
        return None
    if value is None or len(value) < _VALUE.size:
        raise CorruptBatch(f"the transaction marker at offset {header.base_offset} has no coordinator epoch")
    _version, coordinator_epoch = _VALUE.unpack_from(value)
    return TransactionMarker(header.producer_id, header.producer_epoch, type_ == COMMIT_TYPE, coordinator_epoch)
