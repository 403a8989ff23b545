"""The transactions in a log as compaction needs them (C4), read from the log's own batches.

A producer's transactional batches, from its first one after a marker to its next marker, are one transaction. Kafka's
rules:

- records of an aborted transaction are removed, whatever their keys, and do not replace earlier records;
- nothing from the first batch of an open transaction on is changed, because it may still be aborted;
- a marker may be removed once no batch of its transaction is left and delete.retention.ms has passed.

Made only for logs in which a transactional batch or a marker was found, because it reads every header.
"""

from __future__ import annotations

from struct import Struct

from flowstone.wire.record_batch import BatchHeader, decode_records

OFFSET_MAX = 2**63 - 1
_MARKER_KEY = Struct(">hh")  # version, type of the control record's key
_ABORT, _COMMIT = 0, 1


class Transactions:
    def __init__(self) -> None:
        self._open: dict[int, list[BatchHeader]] = {}  # by producer id: the batches since its last marker
        self.aborted: set[int] = set()  # last offsets of the batches of aborted transactions
        self.finished_markers: set[int] = set()  # offsets of markers whose transactions have no batch left

    @property
    def open_offset(self) -> int:
        """Return the offset where the earliest open transaction begins."""
        return min((batches[0].base_offset for batches in self._open.values()), default=OFFSET_MAX)

    def add(self, header: BatchHeader, batch: bytes) -> None:
        """Add the next transactional batch or marker; `batch` is all of its bytes. Raises CorruptBatch for a malformed
        marker.
        """
        producer_id = header.producer_id
        if not header.is_control:
            self._open.setdefault(producer_id, []).append(header)
            return
        kind = _marker_kind(batch)
        if kind is None:
            return
        batches = self._open.pop(producer_id, [])
        if not batches:
            self.finished_markers.add(header.base_offset)
        elif kind == _ABORT:
            self.aborted.update(batch.last_offset for batch in batches)


def _marker_kind(batch: bytes) -> int | None:
    """Return the type of a transaction's marker, or None for other control batches, which are kept."""
    records = decode_records(batch)
    if not records or records[0].key is None or len(records[0].key) < _MARKER_KEY.size:
        return None
    _version, kind = _MARKER_KEY.unpack_from(records[0].key)
    return kind if kind in (_ABORT, _COMMIT) else None
