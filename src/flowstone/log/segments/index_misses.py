"""Index lookups that cannot be answered from the page cache: a worker thread finds the answer for the next call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowstone.errors import StorageFault
from flowstone.log.segments.batch_scan import DamagedBatch, scan
from flowstone.log.segments.cached_reads import NotCached
from flowstone.log.segments.index_pair import newest_timestamp

if TYPE_CHECKING:
    from flowstone.log.segments.segment import Segment

FAR_SEARCHES_MAX = 64


class IndexDamaged(NotCached):
    """An index is missing or wrong: `warm` rebuilds it, and the next call uses the result."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(segment.log.get(), 0, segment.size_bytes)
        self._segment = segment

    def warm(self) -> None:
        self._segment.rebuilt = self._segment.rebuild(self.file, self.count)


class FarSearch(NotCached):
    """A timestamp may be far from where the index leads: `warm` searches on, and the next call uses the result."""

    def __init__(self, segment: Segment, position: int, base_offset: int, target_ms: int) -> None:
        super().__init__(segment.log.get(), position, segment.size_bytes - position)
        self._segment, self._base_offset, self._target_ms = segment, base_offset, target_ms

    def warm(self) -> None:
        found: tuple[int, int] | None = None
        try:
            for position, header in scan(self.file, self.position, self.position + self.count, self._base_offset):
                if newest_timestamp(header) >= self._target_ms:
                    found = position, header.size_bytes
                    break
        except DamagedBatch as damage:
            raise StorageFault(f"{self.file.path}: {damage}") from None
        searches = self._segment.far_searches
        if len(searches) >= FAR_SEARCHES_MAX:
            searches.clear()
        searches[self.position, self._target_ms] = found
