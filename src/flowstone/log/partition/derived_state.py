"""Rebuilds what is derived from the log's headers, producer states and leader epochs, when their files are missing.

Waits for the disk: for start-up and truncation. `segments` are a log's, oldest first, and end at `end_offset`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from flowstone.errors import StorageFault
from flowstone.log.partition.leader_epochs import LeaderEpochs
from flowstone.log.partition.producers.producer_state import ProducerStates
from flowstone.log.partition.undecided_transactions import DecidedTransaction
from flowstone.log.segments.batch_scan import DamagedBatch, ScannedBatch, scan
from flowstone.log.segments.cached_reads import wait_for
from flowstone.log.segments.checkpoints import LEADER_EPOCH_CHECKPOINT
from flowstone.log.segments.file_names import offset_in_name
from flowstone.log.segments.partition_directory import SNAPSHOT_SUFFIX, PartitionDirectory, snapshot_path
from flowstone.log.segments.segment import LOG_SUFFIX, Segment, segment_path
from flowstone.log.segments.transaction_index import AbortEntry
from flowstone.ports.files import File, Files
from flowstone.wire.end_markers import END_MARKER_BYTES_MAX, read_end_marker


class DerivedProducers(NamedTuple):
    states: ProducerStates
    from_offset: int  # the offset from which the log was read
    aborts: list[AbortEntry]  # of the markers from `from_offset` on
    had_transactions: bool  # whether there were transactions before, as far as is known


def load_producers(
    directory: PartitionDirectory,
    names: Sequence[str],
    segments: Sequence[Segment],
    from_offset: int,
    end_offset: int,
    seen_ms: int,
    aborts_from: int | None = None,
) -> DerivedProducers:
    """Return the producer states: those of the newest valid snapshot, with every later batch applied.

    Snapshots beyond `end_offset` or invalid ones are removed.
    """
    first_offset = segments[0].base_offset
    oldest_offset = max(first_offset, from_offset)
    states, start_offset = ProducerStates(), oldest_offset if aborts_from is None else first_offset
    kept, is_found = list[int](), False
    for offset in reversed(_snapshot_offsets(names)):
        decoded = None
        if oldest_offset <= offset <= end_offset:
            if is_found:  # older than a good one: read only if it is ever needed
                kept.append(offset)
                continue
            decoded = ProducerStates.decode_snapshot(directory.files.read(snapshot_path(directory.path, offset)))
        if decoded is None:
            directory.remove_snapshot(offset)
            continue
        kept.append(offset)
        if aborts_from is None or offset <= aborts_from:
            states, start_offset, is_found = decoded, offset, True
    directory.keep_snapshots(kept)
    had_transactions, aborts = states.has_transactions, list[AbortEntry]()
    is_of_another = start_offset < from_offset
    for file, batch in _batches_from(segments, start_offset, end_offset):
        if is_of_another and batch.header.base_offset >= from_offset:
            states.forget_sequences()
            is_of_another = False
        decided = apply_stored(states, file, batch, seen_ms)
        if decided is not None and not decided.is_commit:
            aborts.append(decided.abort_entry())
    if is_of_another:
        states.forget_sequences()
    if not is_found:  # markers at the start of a branch end transactions of its source
        had_transactions = states.has_transactions
    return DerivedProducers(states, start_offset, aborts, had_transactions)


def apply_stored(states: ProducerStates, file: File, batch: ScannedBatch, seen_ms: int) -> DecidedTransaction | None:
    """Apply a batch from a log file to the producer states; return the transaction that it decides, if any."""
    header = batch.header
    if header.producer_id < 0:
        return None
    marker = None
    if header.is_control and header.size_bytes <= END_MARKER_BYTES_MAX:
        marker = read_end_marker(file.read(batch.position, header.size_bytes), 0, header)
    return states.apply(header, header.base_offset, seen_ms, marker)


def read_producers(
    files: Files, path: str, segment_sizes: Mapping[int, int], from_offset: int, end_offset: int, seen_ms: int
) -> ProducerStates:
    """Return what `load_producers` does for a log in use. Opens files anew and changes none, so it may run in any
    thread.

    `segment_sizes`, by base offset, end at `end_offset`. Raises OSError.
    """
    bases = [*segment_sizes, end_offset]
    states, start_offset = ProducerStates(), max(bases[0], from_offset)
    for offset in _snapshot_offsets(files.names(path)):
        if start_offset <= offset <= end_offset:
            decoded = ProducerStates.decode_snapshot(files.read(snapshot_path(path, offset)))
            if decoded is not None:
                states, start_offset = decoded, offset
    for (base_offset, size_bytes), following in zip(segment_sizes.items(), bases[1:], strict=True):
        if following <= start_offset:
            continue
        log_path = segment_path(path, base_offset, LOG_SUFFIX)
        try:
            file = files.open(log_path)
            for batch in scan(file, 0, size_bytes, base_offset):
                if batch.header.base_offset >= start_offset:
                    apply_stored(states, file, batch, seen_ms)
        except DamagedBatch as damage:
            raise StorageFault(f"{log_path}: {damage}") from None
    return states


def _snapshot_offsets(names: Sequence[str]) -> list[int]:
    return sorted(offset for name in names if (offset := offset_in_name(name, SNAPSHOT_SUFFIX)) is not None)


def read_epochs(directory: PartitionDirectory) -> bytes:
    """Return the content of the partition's file of leader epochs, empty if there is none."""
    path = f"{directory.path}/{LEADER_EPOCH_CHECKPOINT}"
    return directory.files.read(path) if directory.files.exists(path) else b""


def load_epochs(
    directory: PartitionDirectory, segments: Sequence[Segment], end_offset: int, seen: LeaderEpochs
) -> LeaderEpochs:
    """Return the log's epochs from the checkpoint and those a recovery has `seen`, or else from the headers."""
    data = read_epochs(directory)
    epochs = LeaderEpochs.decode(data)
    if epochs is None:
        epochs = _derive_epochs([segment for segment in segments if segment.size_bytes], end_offset)
    else:
        epochs.truncate_end(end_offset)
        for epoch, start_offset in seen.entries():
            epochs.assign(epoch, start_offset)
    epochs.truncate_start(segments[0].base_offset)
    if epochs.encode() != data:
        directory.store_epochs(epochs.encode())
    return epochs


def _derive_epochs(segments: Sequence[Segment], end_offset: int) -> LeaderEpochs:
    """Derive the epochs from the log, skipping segments that begin with the same epoch as the next one."""
    epochs = LeaderEpochs()
    firsts = [_first_epoch(segment) for segment in segments]
    for at, segment in enumerate(segments):
        epochs.assign(firsts[at], segment.base_offset)
        if at + 1 == len(segments):
            to_offset = end_offset
        elif firsts[at + 1] == firsts[at]:
            continue
        else:
            to_offset = segments[at + 1].base_offset
        for _, batch in _batches_from([segment], segment.base_offset, to_offset):
            epochs.assign(batch.header.partition_leader_epoch, batch.header.base_offset)
    return epochs


def _first_epoch(segment: Segment) -> int:
    return wait_for(partial(segment.header_at, 0)).partition_leader_epoch


def _batches_from(segments: Sequence[Segment], offset: int, end_offset: int) -> Iterator[tuple[File, ScannedBatch]]:
    """Yield the batches from `offset`, where one begins, to the end, each with its file."""
    for at, segment in enumerate(segments):
        following = segments[at + 1].base_offset if at + 1 < len(segments) else end_offset
        if following <= offset or not segment.size_bytes:
            continue
        start_offset = max(offset, segment.base_offset)
        located = wait_for(partial(segment.locate, start_offset))
        if located is None:
            raise segment.fault(segment.size_bytes, start_offset)
        try:
            file = segment.log.get()
            for batch in scan(file, located[0], segment.size_bytes, start_offset):
                yield file, batch
        except DamagedBatch as damage:
            raise StorageFault(f"{segment.log.path}: {damage}") from None
