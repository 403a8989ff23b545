"""KeyIndex: the keys of a share partition's unfinished records, and the first record of each key, its head.

A key is known by a hash of 64 bits, as a number above 0; 0 stands for an offset without an unfinished record. A record
without a key has a number of its own (`key_of_none`), which no other record has.

A batch whose keys are all new, and records that nothing waits behind, cost a few operations on whole lists. Only
records that wait for others of their key are handled one by one. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import repeat

from flowstone.broker.sharing.spans import Span, spans_of

# Numbers of records without a key are above all hashes.
_NO_KEY = 1 << 64
# Keys of finished records before the first unfinished one are dropped when there are so many.
DROPPED_MIN = 4096


def key_of_none(offset: int) -> int:
    """Return the number that stands for the key of a record that has none."""
    return _NO_KEY | offset


class KeyIndex:
    def __init__(self, start: int) -> None:
        self._base = start
        self._keys: list[int] = []  # by offset, from the base on
        self._heads: dict[int, int] = {}
        self._followers: dict[int, deque[int]] = {}  # unfinished records behind the head of their key, in order

    @property
    def next_offset(self) -> int:
        return self._base + len(self._keys)

    def add(self, first: int, keys: Sequence[int]) -> list[Span]:
        """Add the records at consecutive offsets from `first` on, behind all others; return those that are heads."""
        if not keys:
            return []
        if first > self.next_offset:
            self._keys += repeat(0, first - self.next_offset)
        self._keys += keys
        heads = self._heads
        if 0 not in keys and heads.keys().isdisjoint(keys) and len(set(keys)) == len(keys):
            heads.update(zip(keys, range(first, first + len(keys)), strict=True))
            return [(first, first + len(keys) - 1)]
        found: list[int] = []
        for offset, key in enumerate(keys, first):
            if not key:
                continue
            if heads.setdefault(key, offset) == offset:
                found.append(offset)
            else:
                self._followers.setdefault(key, deque()).append(offset)
        return spans_of(found)

    def finish(self, first: int, last: int) -> list[Span]:
        """Remove records, and return those that are heads of their keys now. Offsets without a record are ignored."""
        begin, end = max(first - self._base, 0), last + 1 - self._base
        keys = self._keys[begin:end]
        if not keys:
            return []
        self._keys[begin:end] = repeat(0, len(keys))
        first = self._base + begin
        if 0 not in keys and self._followers.keys().isdisjoint(keys):
            for key in keys:
                del self._heads[key]
            return []
        heads, followers, found = self._heads, self._followers, list[int]()
        for offset, key in enumerate(keys, first):
            if not key:
                continue
            waiting = followers.get(key)
            if waiting is None:
                del heads[key]
            elif heads[key] == offset:
                head = heads[key] = waiting.popleft()
                if head > last:  # otherwise it is finished below
                    found.append(head)
                if not waiting:
                    del followers[key]
            else:  # its head is older, which retention would have deleted before
                waiting.remove(offset)
                if not waiting:
                    del followers[key]
        found.sort()
        return spans_of(found)

    def drop_before(self, offset: int) -> None:
        """Record that all records before an offset are finished."""
        if offset >= self.next_offset:
            self._keys.clear()
            self._base = offset
        elif offset - self._base >= DROPPED_MIN:
            del self._keys[: offset - self._base]
            self._base = offset
