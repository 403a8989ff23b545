"""Compares the transaction index of a sealed segment with the segment's batches, for the scrubber and for tools.

A wrong index shows aborted records to read_committed readers, or hides committed ones, and Kafka's format has no
checksum. Every entry must have its marker in the segment, every abort of records in the segment must have its entry,
and no entry may claim that more was stable than was.

A transaction may begin in an earlier segment, and compaction removes its records before its marker. So the first offset
of an entry is only known to lie after the producer's marker before, and not behind its first record in the segment.
A repair may have replaced a marker by an empty batch: where there is one, only the form of the index is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from flowstone.log.segments.transaction_index import AbortEntry, decode_aborts, is_sound
from flowstone.types import Bytes
from flowstone.wire.end_markers import read_end_marker
from flowstone.wire.record_batch import BatchHeader

_NO_OFFSET = -1


class _Abort(NamedTuple):
    """An abort marker, and where its transaction may begin."""

    marker_offset: int
    producer_id: int
    former_marker_offset: int  # of the same producer in the segment, or -1
    first_offset: int | None  # of its records in the segment, if there are any
    stable_offset_max: int

    def why_not(self, entry: AbortEntry) -> str | None:
        """Return why the index entry cannot belong to this abort marker, as a clause, or None if it can."""
        last_first_offset = self.marker_offset if self.first_offset is None else self.first_offset
        if entry.producer_id != self.producer_id:
            return f"it names producer {entry.producer_id} instead of {self.producer_id}"
        if not self.former_marker_offset < entry.first_offset <= last_first_offset:
            return f"it begins the transaction at offset {entry.first_offset}"
        if entry.last_stable_offset > self.stable_offset_max:
            return f"it claims that all before offset {entry.last_stable_offset} was stable"
        return None


class TransactionIndexCheck:
    """Check of one segment's transaction index against its batches. Pass the batches in order, then ask for the
    verdict.
    """

    def __init__(self) -> None:
        self._begun: dict[int, int] = {}  # by producer: its first transactional record since its last marker
        self._marked: dict[int, int] = {}  # by producer: its last marker
        self._aborts: dict[int, _Abort] = {}  # by the marker's offset
        self._may_lack_markers = False

    def add(self, header: BatchHeader, read: Callable[[], Bytes]) -> None:
        """Add the next batch; `read` returns its bytes, of which only those of a control batch are needed."""
        if not header.is_transactional:
            self._may_lack_markers |= not header.record_count and header.producer_id < 0
            return
        producer_id, offset = header.producer_id, header.base_offset
        if not header.is_control:
            self._begun.setdefault(producer_id, offset)
            return
        marker = read_end_marker(read(), 0, header)
        if marker is None and header.record_count:
            return  # of another kind
        first_offset = self._begun.pop(producer_id, None)
        if marker is not None and not marker.is_commit:
            former = self._marked.get(producer_id, _NO_OFFSET)
            stable_offset_max = min(self._begun.values(), default=offset + 1)
            self._aborts[offset] = _Abort(offset, producer_id, former, first_offset, stable_offset_max)
        self._marked[producer_id] = offset

    def verdict(self, data: Bytes, base_offset: int, end_offset: int) -> str | None:
        """Return what is wrong with the bytes of the index, as a clause, or None if nothing is."""
        if not is_sound(data, base_offset, end_offset):
            return "it is malformed"
        if self._may_lack_markers:
            return None
        left = dict(self._aborts)
        for entry in decode_aborts(data):
            abort = left.pop(entry.marker_offset, None)
            reason = "there is no abort marker" if abort is None else abort.why_not(entry)
            if reason is not None:
                return f"in its entry for offset {entry.marker_offset}: {reason}"
        missing = next((each for each in left.values() if each.first_offset is not None), None)
        if missing is not None:
            return f"the transaction that is aborted at offset {missing.marker_offset} is missing"
        return None
