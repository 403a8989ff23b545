"""The records of a share partition that are copied to a dead letter queue before they are archived.

While a record is copied nobody else may have it: it stays acquired, with the target archived, without an owner or lock.
That it was given up is stored first, with the next change of state, so that it is out of delivery after a crash too.
Its range is archived with the next change after the copy is durable. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flowstone.broker.sharing.share_changes import Reason
from flowstone.broker.sharing.window import ACQUIRED, ARCHIVED, AVAILABLE, Range, Window
from flowstone.coordinator.share.records import LetterRange


class Copies:
    def __init__(self, window: Window) -> None:
        self._window = window
        self._waiting: list[LetterRange] = []

    def __len__(self) -> int:
        """Return how many ranges wait for their copies, without those that were taken."""
        return len(self._waiting)

    def load(self, letters: Iterable[LetterRange]) -> None:
        """Exclude records with unfinished copies from delivery; the owner finishes the copies."""
        window = self._window
        for first, last, count, reason in letters:
            first = max(first, window.start)
            if last < first:
                continue
            if last >= window.next_offset:
                window.append(Range(window.next_offset, last, AVAILABLE))
            for each in window.exactly(first, last):
                if each.state is AVAILABLE:
                    each.state, each.target, each.letter_reason = ACQUIRED, ARCHIVED, reason
                    each.count, each.not_before_ms = count, 0

    def load_given_up(self, letters: Iterable[LetterRange]) -> None:
        """Let the owner copy the records that are waiting for it, except those whose copies have begun."""
        window = self._window
        for first, last, count, reason in letters:
            first = max(first, window.start)
            if last < first:
                continue
            known_to = min(last, window.next_offset - 1)
            free = [(max(first, known_to + 1), last)] if known_to < last else []
            if first <= known_to:
                free += [
                    (max(each.first, first), min(each.last, known_to))
                    for each in window.overlapping(first, known_to)
                    if each.state is AVAILABLE
                ]
            found = [LetterRange(begin, end, count, reason) for begin, end in sorted(free)]
            self.load(found)
            self._waiting += found

    def add(self, each: Range, reason: Reason) -> None:
        """Let the owner copy records before they are archived."""
        each.letter_reason, each.ticket = reason, 0
        self._waiting.append(LetterRange(each.first, each.last, each.count, reason))

    def take(self) -> list[LetterRange]:
        """Return the records to copy since the last call."""
        taken, self._waiting = self._waiting, []
        return taken

    def give_back(self, letters: Sequence[LetterRange]) -> None:
        """Take back what is left of the result of `take`."""
        self._waiting[:0] = letters

    def finish(self, letters: Iterable[LetterRange], ticket: int) -> None:
        """Record that the copies are durable; the write with this number archives the records."""
        for first, last, _, _ in letters:
            if last < self._window.start:
                continue
            for each in self._window.exactly(max(first, self._window.start), last):
                if each.is_copying:
                    each.letter_reason, each.is_copied, each.ticket = None, True, ticket
