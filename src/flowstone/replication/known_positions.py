"""Log positions of offsets that are known without an index lookup: the ends of the latest appends."""

from __future__ import annotations

from collections import deque

from flowstone.log.partition.partition_log import LogPosition, PartitionLog

# The number of appends above the high watermark whose ends are remembered; other positions are looked up when needed.
REMEMBERED_ENDS_MAX = 1024
# Stands for a segment's base offset if the position of an offset is not known.
NOT_LOOKED_UP = -1

# Shared by all logs that have never had an append above the high watermark: an empty queue takes 600 bytes.
_NO_ENDS: deque[LogPosition] = deque(maxlen=0)


class KnownPositions:
    """The ends of appends that the high watermark has not reached yet, in ascending order."""

    __slots__ = ("_ends", "_log")

    def __init__(self, log: PartitionLog) -> None:
        self._log, self._ends = log, _NO_ENDS

    def remember_end(self) -> None:
        """Remember the position of the log's end, where the high watermark may come to be."""
        if self._ends is _NO_ENDS:
            self._ends = deque(maxlen=REMEMBERED_ENDS_MAX)
        self._ends.append(self._log.end)

    def forget(self) -> None:
        self._ends.clear()

    def place(self, offset: int) -> LogPosition:
        """Return the position of an offset between the high watermark and the log's end, possibly one not looked up
        yet.

        Positions below the offset are forgotten: the high watermark does not go back.
        """
        for known in (self._log.end, self._log.flushed_end):
            if known.offset == offset:
                return known
        ends = self._ends
        while ends and ends[0].offset < offset:
            ends.popleft()
        return ends[0] if ends and ends[0].offset == offset else LogPosition(offset, NOT_LOOKED_UP, 0)
