"""Transactions left open at the end of a branch or a restored backup: the copy of the log aborts them with markers.

The coordinator knows nothing of the copy, so that no marker would ever end them there. A copy therefore goes on with an
abort marker for each: the first batches that are not its source's. With real markers, whatever reads the copy agrees:
consumers (which forget an aborted producer only at its marker, and may meet its next transaction in the same fetch),
followers, compaction, recovery and tools.

Owns what is written for it, all of which is durable before the copy can be seen: the markers, in the segment that the
copy is appended to, and a snapshot of producers where that begins, which says where the transactions began.

For a worker thread: waits for the disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from flowstone.log.partition.derived_state import read_producers
from flowstone.log.partition.producers.producer_state import ProducerStates
from flowstone.log.partition.undecided_transactions import OpenTransaction
from flowstone.log.segments.partition_directory import snapshot_path
from flowstone.log.segments.segment import LOG_SUFFIX, Segment, segment_path
from flowstone.ports.files import File, Files
from flowstone.wire.end_markers import EndMarker, end_marker
from flowstone.wire.record_batch import PREFIX_BYTES, BatchHeader, parse_header, prefix

NO_TIMESTAMP = -1  # a marker without a timestamp affects neither retention nor lookups by time
ABORTED = EndMarker(is_commit=False, coordinator_epoch=0)  # the lowest epoch: a coordinator's markers may follow


class InheritedTransactions(NamedTuple):
    """The markers and the producer snapshot that a copy starts with."""

    snapshot: bytes  # of the producers whose transactions are open
    markers: tuple[BatchHeader, ...]

    def take_up(self, active: Segment, seen_ms: int) -> ProducerStates:
        """Set the indexes of the copy's active segment, which holds the markers; return the producer states."""
        states = ProducerStates.decode_snapshot(self.snapshot)
        assert states is not None
        for header in self.markers:
            active.note_found(active.size_bytes, header)
            decided = states.apply(header, header.base_offset, seen_ms, ABORTED)
            assert decided is not None
            active.transactions.note(decided.abort_entry())
        return states


def find_inherited(
    files: Files,
    source_path: str,
    segment_sizes: Mapping[int, int],
    from_offset: int,
    end_offset: int,
    cut_batch: BatchHeader | None,
) -> ProducerStates:
    """Return the states of those producers of a log that have an open transaction at `end_offset`.

    `segment_sizes`, by base offset, end at the last whole batch; `cut_batch` follows if the end lies within a batch.
    Raises OSError.
    """
    states = read_producers(files, source_path, segment_sizes, from_offset, end_offset, NO_TIMESTAMP)
    if cut_batch is not None and cut_batch.producer_id >= 0:
        states.apply(cut_batch, cut_batch.base_offset, NO_TIMESTAMP)
    states.forget_sequences()
    return states


def write_aborts(
    files: Files, path: str, end_offset: int, leader_epoch: int, states: ProducerStates
) -> tuple[InheritedTransactions, list[File]]:
    """Write the markers and the snapshot of a copy that ends at `end_offset`; return also the files to be synced."""
    snapshot = states.encode_snapshot()
    batches = [_placed(each, end_offset + at, leader_epoch) for at, each in enumerate(states.open_transactions())]
    contents = (
        (segment_path(path, end_offset, LOG_SUFFIX), b"".join(batches)),
        (snapshot_path(path, end_offset), snapshot),
    )
    written = []
    for file_path, data in contents:
        file = files.open(file_path, create=True)
        file.write(0, [data])
        written.append(file)
    return InheritedTransactions(snapshot, tuple(parse_header(batch) for batch in batches)), written


def _placed(transaction: OpenTransaction, offset: int, leader_epoch: int) -> bytes:
    marker = end_marker(
        transaction.producer_id, transaction.epoch, ABORTED.coordinator_epoch, ABORTED.is_commit, NO_TIMESTAMP
    )
    return prefix(offset, parse_header(marker).batch_length, leader_epoch) + marker[PREFIX_BYTES:]
