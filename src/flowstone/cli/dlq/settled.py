"""The settled (retried or dropped) letters of a partition: all before an offset, and some after it.

The offset is the one that the queue's group has committed. The others are ranges in the commit's metadata, such as
`settled 7 9-12`.
"""

from __future__ import annotations

import re
from bisect import bisect_right, insort

from flowstone.cli.common.errors import CommandError

METADATA_BYTES_MAX = 4096  # of a committed offset (offset.metadata.max.bytes)
_WORD = "settled"
_RANGE = re.compile(r"([0-9]{1,19})(?:-([0-9]{1,19}))?")


class Settled:
    def __init__(self, next_offset: int, metadata: str = "") -> None:
        """Parse a commit's metadata; metadata that another program has written is ignored."""
        self.next_offset = next_offset
        self._ranges: list[tuple[int, int]] = []
        word, *texts = metadata.split() or [""]
        found = [_RANGE.fullmatch(each) for each in texts]
        if word == _WORD and all(found):
            self._ranges = sorted((int(each[1]), int(each[2] or each[1])) for each in found if each is not None)

    def __contains__(self, offset: int) -> bool:
        if offset < self.next_offset:
            return True
        at = bisect_right(self._ranges, offset, key=lambda each: each[0])
        return at > 0 and offset <= self._ranges[at - 1][1]

    def add(self, offset: int) -> None:
        """Settle one letter."""
        if offset in self:
            return
        at = bisect_right(self._ranges, offset, key=lambda each: each[0])
        if at > 0 and self._ranges[at - 1][1] == offset - 1:
            self._ranges[at - 1] = (self._ranges[at - 1][0], offset)
        else:
            insort(self._ranges, (offset, offset))

    def advance(self, next_offset: int) -> None:
        """Go on at the first letter that is open, or at the end."""
        self.next_offset = max(self.next_offset, next_offset)
        self._ranges = [each for each in self._ranges if each[1] >= self.next_offset]
        while self._ranges and self._ranges[0][0] <= self.next_offset:
            self.next_offset = self._ranges.pop(0)[1] + 1

    def metadata(self) -> str:
        """Return the ranges after the offset. Raises CommandError if they are too many for a commit."""
        if not self._ranges:
            return ""
        texts = [str(first) if first == last else f"{first}-{last}" for first, last in self._ranges]
        text = " ".join([_WORD, *texts])
        if len(text) > METADATA_BYTES_MAX:
            raise CommandError(
                "too many letters would be settled one by one behind open ones: "
                f"retry or drop the letters from offset {self.next_offset} on first"
            )
        return text
