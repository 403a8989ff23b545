"""The transaction indexes of a log that is opened: decides which can be used as they are, and rebuilds the others.

Rules:
- An index that is malformed, or that is missing although another segment has one, is derived from the log, with all
  that follow it: a transaction may span segments. Segments older than the first transaction have an empty index, unless
  they are from another program; those are read once.
- So is that of a segment whose batches were checked after an unclean stop, if it has markers, or if its index has
  entries.
- If a snapshot of producers knows of transactions, and no segment has an index, all of them are derived. Likewise if a
  branch that has no snapshot has markers.
- If the log is read anyway, its batches take precedence over the index.

Waits for the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flowstone.log.partition.derived_state import DerivedProducers
from flowstone.log.partition.producers.producer_state import ProducerStates
from flowstone.log.segments.cached_reads import wait_for
from flowstone.log.segments.partition_directory import PartitionDirectory
from flowstone.log.segments.segment import Segment
from flowstone.log.segments.transaction_index import encode_aborts, is_sound

Derive = Callable[[int | None], DerivedProducers]


class TransactionIndexRecovery:
    def __init__(self, directory: PartitionDirectory, segments: Sequence[Segment], end_offset: int) -> None:
        self._directory, self._segments = directory, segments
        self._ends = [*(segment.base_offset for segment in segments[1:]), end_offset]

    def run(self, markers_in: Mapping[int, bool], derive: Derive) -> ProducerStates:
        """Restore the transaction index of every segment; return the producer states.

        `markers_in` maps the base offset of each segment that was checked to whether it has markers. `derive` reads
        producer states from the log and, from a given offset on, the aborted transactions.
        """
        self._find_files()
        derived = derive(self._first_unsure(markers_in))
        has_files = any(segment.transactions.has_file for segment in self._segments)
        if derived.had_transactions and not has_files and derived.from_offset > self._segments[0].base_offset:
            derived = derive(self._segments[0].base_offset)
        self._take_over(derived, has_files)
        return derived.states

    def _find_files(self) -> None:
        for segment in self._segments:
            path = segment.transactions.handle.path
            has_file = self._directory.files.exists(path)
            if segment is self._segments[-1]:
                data = self._directory.files.read(path) if has_file else b""
                segment.transactions.open_active(data, has_file=has_file)
            else:
                segment.transactions.open_sealed(self._directory.files.size(path) if has_file else None)

    def _first_unsure(self, markers_in: Mapping[int, bool]) -> int | None:
        """Return the base offset of the first segment whose index must be rebuilt; None if there is none."""
        is_expected = any(segment.transactions.has_file for segment in self._segments[:-1])
        for segment, end_offset in zip(self._segments, self._ends, strict=True):
            index = segment.transactions
            is_missed = is_expected and not index.has_file and segment.base_offset not in markers_in
            has_markers = markers_in.get(segment.base_offset)
            is_outdated = has_markers is not None and (has_markers or index.size_bytes > 0)
            if is_missed or is_outdated:
                return segment.base_offset
            if not is_sound(wait_for(index.read), segment.base_offset, end_offset):
                return segment.base_offset
        return None

    def _take_over(self, derived: DerivedProducers, has_transactions: bool) -> None:
        aborts = derived.aborts
        at = 0
        for segment, end_offset in zip(self._segments, self._ends, strict=True):
            first = at
            while at < len(aborts) and aborts[at].marker_offset < end_offset:
                at += 1
            index, is_active = segment.transactions, segment is self._segments[-1]
            has_transactions = has_transactions or at > first or index.has_file
            if segment.base_offset < derived.from_offset:
                continue
            data = encode_aborts(aborts[first:at])
            if is_active or data != wait_for(index.read) or (has_transactions and not index.has_file):
                index.open_active(data, has_file=index.has_file)
            if not is_active and index.is_active:
                index.write(even_if_empty=has_transactions)
                if index.has_file:
                    self._directory.note_unsynced(index.handle.get())
                    self._directory.note_names_changed()
                index.seal()
