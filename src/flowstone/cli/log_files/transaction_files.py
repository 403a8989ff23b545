"""Output of `flowstone log dump` about transactions: end markers, states of transactional ids, and two kinds of files.

Transaction indexes (`.txnindex`) hold the aborted transactions of a segment, and producer snapshots (`.snapshot`) what
a partition remembers of producers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from flowstone.cli.log_files.output_forms import time_text
from flowstone.cluster.decisions.topic_names import TRANSACTION_STATE
from flowstone.coordinator.transactions.record_format import decode
from flowstone.coordinator.transactions.records import TransactionRecord, TransactionRemoved
from flowstone.errors import StorageFault
from flowstone.log.partition.producer_snapshot import decode_snapshot
from flowstone.log.segments.batch_scan import ScannedBatch
from flowstone.log.segments.file_names import offset_in_name
from flowstone.log.segments.partition_directory import SNAPSHOT_SUFFIX
from flowstone.log.segments.segment import TRANSACTION_INDEX_SUFFIX
from flowstone.log.segments.transaction_index import TRANSACTION_ENTRY, decode_aborts
from flowstone.ports.files import File
from flowstone.wire.end_markers import END_MARKER_BYTES_MAX, EndMarker, read_end_marker
from flowstone.wire.record_batch import Record

SUFFIXES = (TRANSACTION_INDEX_SUFFIX, SNAPSHOT_SUFFIX)


class FileEntry(NamedTuple):
    """One entry of a file, or its damage: the name of its JSON document, the document, and a line for users."""

    kind: str
    document: dict[str, Any]
    line: str


def transaction_paths(directory: str) -> list[str]:
    """Return the transaction indexes and producer snapshots of a partition, by name."""
    names = sorted(os.listdir(directory))
    return [f"{directory}/{name}" for name in names if is_transaction_file(name)]


def is_transaction_file(path: str) -> bool:
    name = os.path.basename(path)
    return any(offset_in_name(name, suffix) is not None for suffix in SUFFIXES)


def read_entries(path: str) -> Iterator[FileEntry]:
    """Yield the entries of a transaction index or a producer snapshot, and its damage."""
    with open(path, "rb") as file:
        data = file.read()
    return _aborted(path, data) if path.endswith(TRANSACTION_INDEX_SUFFIX) else _producers(path, data)


def _aborted(path: str, data: bytes) -> Iterator[FileEntry]:
    whole_bytes = len(data) // TRANSACTION_ENTRY.size * TRANSACTION_ENTRY.size
    for each in decode_aborts(data[:whole_bytes]):
        document = {
            "file": path,
            "producer_id": each.producer_id,
            "first_offset": each.first_offset,
            "last_offset": each.marker_offset,
            "last_stable_offset": each.last_stable_offset,
        }
        line = (
            f"  producer {each.producer_id}: aborted from offset {each.first_offset} to the marker at "
            f"{each.marker_offset}, last stable offset {each.last_stable_offset}"
        )
        yield FileEntry("aborted", document, line)
    if whole_bytes < len(data):
        yield _damage(path, f"{len(data) - whole_bytes} bytes after the last whole entry")


def _producers(path: str, data: bytes) -> Iterator[FileEntry]:
    entries = decode_snapshot(data)
    if entries is None:
        yield _damage(path, "not a producer snapshot: its version, length or checksum is wrong")
        return
    for each in entries:
        document = {
            "file": path,
            "producer_id": each.producer_id,
            "producer_epoch": each.epoch,
            "last_sequence": each.last_sequence,
            "last_offset": each.last_offset,
            "last_timestamp": each.timestamp_ms,
            "coordinator_epoch": each.coordinator_epoch,
            "transaction_first_offset": each.transaction_first_offset,
        }
        cells = [f"producer {each.producer_id}/{each.epoch}", f"last sequence {each.last_sequence}"]
        cells += [f"last offset {each.last_offset}", f"newest {time_text(each.timestamp_ms)}"]
        if each.coordinator_epoch >= 0:
            cells.append(f"coordinator epoch {each.coordinator_epoch}")
        if each.transaction_first_offset >= 0:
            cells.append(f"open transaction from offset {each.transaction_first_offset}")
        yield FileEntry("producer", document, "  " + ", ".join(cells))


def _damage(path: str, reason: str) -> FileEntry:
    return FileEntry("damage", {"file": path, "reason": reason}, f"  DAMAGED: {reason}")


# Records of log files


def marker_of(file: File, batch: ScannedBatch) -> EndMarker | None:
    """Return the end marker in a batch, or None if it is an ordinary batch or another kind of control batch."""
    if not batch.header.is_control or batch.header.size_bytes > END_MARKER_BYTES_MAX:
        return None
    return read_end_marker(file.read(batch.position, batch.header.size_bytes), 0, batch.header)


def marker_text(marker: EndMarker) -> str:
    return f"{'COMMIT' if marker.is_commit else 'ABORT'} of coordinator epoch {marker.coordinator_epoch}"


def marker_document(marker: EndMarker | None) -> dict[str, Any] | None:
    if marker is None:
        return None
    return {"type": "COMMIT" if marker.is_commit else "ABORT", "coordinator_epoch": marker.coordinator_epoch}


def holds_transaction_state(log_path: str) -> bool:
    """Return whether the file lies in the directory of a partition of `__transaction_state`."""
    directory = os.path.basename(os.path.dirname(os.path.abspath(log_path)))
    return directory.rpartition("-")[0] == TRANSACTION_STATE


def state_of(record: Record) -> TransactionRecord | None:
    """Return what a record of `__transaction_state` says, or None if it cannot be read."""
    try:
        return decode(record.key or b"", record.value)
    except StorageFault:
        return None


def state_text(stored: TransactionRecord) -> str:
    if isinstance(stored, TransactionRemoved):
        return f"{stored.transactional_id}: removed"
    partitions = " ".join(f"{each.topic}/{each.partition}" for each in sorted(stored.partitions)) or "none"
    return (
        f"{stored.transactional_id}: {stored.state.label}, producer {stored.producer_id}/{stored.producer_epoch}, "
        f"timeout {stored.timeout_ms} ms, started {time_text(stored.start_ms)}, partitions {partitions}"
    )


def state_document(stored: TransactionRecord) -> dict[str, Any]:
    if isinstance(stored, TransactionRemoved):
        return {"transactional_id": stored.transactional_id, "state": None}
    return {
        "transactional_id": stored.transactional_id,
        "state": stored.state.label,
        "producer_id": stored.producer_id,
        "producer_epoch": stored.producer_epoch,
        "timeout_ms": stored.timeout_ms,
        "last_update_ms": stored.last_update_ms,
        "start_ms": stored.start_ms,
        "client_version": stored.client_version,
        "previous_producer_id": stored.previous_producer_id,
        "next_producer_id": stored.next_producer_id,
        "partitions": [{"topic": each.topic, "partition": each.partition} for each in sorted(stored.partitions)],
    }
