"""End markers of transactions: the control batches that say whether a producer's open transaction was committed.

Owns their layout, which is Kafka's: one record, whose key says commit or abort and whose value has the epoch of the
transaction coordinator that wrote it. Batches are a peer's bytes: a control batch that is no end marker is ignored.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from flowstone.errors import ApiError
from flowstone.types import Bytes
from flowstone.wire.record_batch import BatchHeader, Record, build_batch, decode_records

# A marker takes 78 bytes. Kafka may add fields to its value; a control batch beyond this size is none.
END_MARKER_BYTES_MAX = 1024
NO_COORDINATOR_EPOCH = -1

_KEY = Struct(">hh")  # version, type
_VALUE = Struct(">hi")  # version, coordinator epoch
_VERSION = 0
_ABORT, _COMMIT = 0, 1


class EndMarker(NamedTuple):
    is_commit: bool
    coordinator_epoch: int


def end_marker(producer_id: int, producer_epoch: int, coordinator_epoch: int, is_commit: bool, timestamp: int) -> bytes:
    """Return a control batch that commits or aborts the open transaction of a producer."""
    key = _KEY.pack(_VERSION, _COMMIT if is_commit else _ABORT)
    value = _VALUE.pack(_VERSION, coordinator_epoch)
    return build_batch(
        [Record(0, timestamp, key, value)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def read_end_marker(view: Bytes, position: int, header: BatchHeader) -> EndMarker | None:
    """Return the end marker in the control batch at `position`, or None if it is another kind of control batch.

    A control batch whose record was compacted away has no marker: nothing of its transaction is left.
    """
    if not header.record_count or header.size_bytes > END_MARKER_BYTES_MAX:
        return None
    try:
        record = decode_records(view, position, END_MARKER_BYTES_MAX)[0]
    except (ApiError, IndexError):
        return None
    key, value = record.key or b"", record.value or b""
    if len(key) < _KEY.size or len(value) < _VALUE.size:
        return None
    _key_version, kind = _KEY.unpack_from(key)
    if kind not in (_ABORT, _COMMIT):
        return None
    _value_version, coordinator_epoch = _VALUE.unpack_from(value)
    return EndMarker(kind == _COMMIT, coordinator_epoch)
