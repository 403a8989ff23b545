"""The records that a share consumer holds at one leader: their locks, and the acknowledgements that are to be sent.

Pure. Offsets of one partition are acknowledged in ranges, as few as possible. A record is held from its acquisition
until its acknowledgement was answered; what is settled and not sent yet is `pending`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from flowstone.queues.task import Outcome, Task

Place = tuple[bytes, int]  # topic id and partition


class AckRange(NamedTuple):
    first_offset: int
    last_offset: int
    outcome: Outcome


class Held:
    """One record: its task, or None for a gap, and until when it is locked."""

    __slots__ = ("held_since_s", "locked_until_s", "task")

    def __init__(self, task: Task | None, now_s: float, lock_s: float) -> None:
        self.task = task
        self.locked_until_s, self.held_since_s = now_s + lock_s, now_s


class HeldTasks:
    def __init__(self) -> None:
        self.by_place: dict[Place, dict[int, Held]] = {}
        self._pending: dict[Place, dict[int, Outcome]] = {}
        self.lock_s = 30.0  # as of the last response

    def __len__(self) -> int:
        return sum(len(held) for held in self.by_place.values())

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def acquire(self, place: Place, offset: int, task: Task | None, now_s: float) -> None:
        """Add a record; one without a task is a gap, which is acknowledged as such."""
        self.by_place.setdefault(place, {})[offset] = Held(task, now_s, self.lock_s)
        if task is None:
            self._pending.setdefault(place, {})[offset] = Outcome.GAP

    def settle(self, place: Place, offset: int, outcome: Outcome) -> bool:
        """Record an outcome to be sent; return whether the record is still held."""
        if offset not in self.by_place.get(place, ()):
            return False
        self._pending.setdefault(place, {})[offset] = outcome
        return True

    def renew(self, now_s: float, hold_max_s: float) -> None:
        """Request the renewal of locks whose half is over, except for records that are settled or held for too long."""
        for place, records in self.by_place.items():
            pending = self._pending.get(place, {})
            for offset, held in records.items():
                is_due = held.locked_until_s - now_s < self.lock_s / 2
                if is_due and offset not in pending and now_s - held.held_since_s < hold_max_s:
                    self._pending.setdefault(place, {})[offset] = Outcome.RENEW

    def take_pending(self, only: frozenset[Place] | None = None) -> dict[Place, list[AckRange]]:
        """Return the acknowledgements to send, of these partitions or of all, which are no longer pending."""
        taken = {place: outcomes for place, outcomes in self._pending.items() if only is None or place in only}
        for place in taken:
            del self._pending[place]
        return {place: list(_ranges(outcomes)) for place, outcomes in taken.items()}

    @property
    def has_pending_renewals(self) -> bool:
        return any(Outcome.RENEW in outcomes.values() for outcomes in self._pending.values())

    def has_renewals(self, acknowledged: Mapping[Place, list[AckRange]]) -> bool:
        return any(each.outcome is Outcome.RENEW for ranges in acknowledged.values() for each in ranges)

    def answered(self, place: Place, ranges: list[AckRange], now_s: float, *, is_accepted: bool) -> list[Task]:
        """Record the answer to acknowledgements; return the tasks whose locks turned out to be lost."""
        records = self.by_place.get(place, {})
        lost = []
        for each in ranges:
            for offset in range(each.first_offset, each.last_offset + 1):
                held = records.get(offset)
                if held is None:
                    continue
                if each.outcome is Outcome.RENEW and is_accepted:
                    held.locked_until_s = now_s + self.lock_s
                    continue
                del records[offset]
                if not is_accepted and held.task is not None:
                    lost.append(held.task)
        if not records:
            self.by_place.pop(place, None)
        return lost

    def lose(self, place: Place | None = None) -> list[Task]:
        """Drop everything held in a partition, or all: its locks are gone. Return the tasks that were not settled."""
        places = list(self.by_place) if place is None else [place]
        lost = []
        for each in places:
            pending = self._pending.pop(each, {})
            for offset, held in self.by_place.pop(each, {}).items():
                if held.task is not None and pending.get(offset) is not Outcome.RELEASE:
                    lost.append(held.task)
        return lost

    def release_rest(self) -> None:
        """Release everything that is not settled."""
        for place, records in self.by_place.items():
            pending = self._pending.setdefault(place, {})
            for offset in records:
                if pending.get(offset, Outcome.RENEW) is Outcome.RENEW:
                    pending[offset] = Outcome.RELEASE


def _ranges(outcomes: Mapping[int, Outcome]) -> Iterator[AckRange]:
    """Yield the outcomes as ranges of equal ones, in order."""
    first = last = -1
    current: Outcome | None = None
    for offset in sorted(outcomes):
        if outcomes[offset] is current and offset == last + 1:
            last = offset
            continue
        if current is not None:
            yield AckRange(first, last, current)
        first = last = offset
        current = outcomes[offset]
    if current is not None:
        yield AckRange(first, last, current)
