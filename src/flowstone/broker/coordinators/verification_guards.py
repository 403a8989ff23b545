"""Guards of transactional appends that wait for the transaction coordinator to say that their transaction is open.

While a coordinator is asked, the transaction may end: its marker is written first, and what was verified would be
appended after it, to a transaction that nobody ends (KAFKA-14402). A guard is begun before the coordinator is asked and
holds until a marker of the same producer is written. Under the second transaction protocol markers raise the epoch, so
that the log itself refuses what comes late, and the marker of one transaction may come while the next one is verified
(KAFKA-18575): such markers break no guard.
"""

from __future__ import annotations

# From this version of the transaction protocol on, a marker raises the producer's epoch.
_MARKERS_RAISE_EPOCHS_SINCE = 2

# A partition's index and a producer id.
_Key = tuple[int, int]


class VerificationGuards:
    def __init__(self) -> None:
        # One guard for each request that waits for the transaction coordinator.
        self._guards: dict[_Key, set[Guard]] = {}

    def __len__(self) -> int:
        """Return the number of guards that have not been ended."""
        return sum(map(len, self._guards.values()))

    def begin(self, index: int, producer_id: int) -> Guard:
        """Return a guard for a producer in a partition. The caller ends it, whatever happens."""
        guard = Guard(self, (index, producer_id))
        self._guards.setdefault((index, producer_id), set()).add(guard)
        return guard

    def marker_written(self, index: int, producer_id: int, transaction_version: int) -> None:
        """Break the guards of a producer whose transaction has ended in a partition."""
        if transaction_version < _MARKERS_RAISE_EPOCHS_SINCE:
            for guard in self._guards.get((index, producer_id), ()):
                guard.is_broken = True

    def forget(self, key: _Key, guard: Guard) -> None:
        """Take out a guard that is ended."""
        guards = self._guards[key]
        guards.remove(guard)
        if not guards:
            del self._guards[key]


class Guard:
    __slots__ = ("_guards", "_key", "is_broken")

    def __init__(self, guards: VerificationGuards, key: _Key) -> None:
        self._guards, self._key = guards, key
        self.is_broken = False

    def end(self) -> None:
        self._guards.forget(self._key, self)
