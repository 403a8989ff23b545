"""Guards of transactional appends that wait for the transaction coordinator to say that their transaction is open.

While a coordinator is asked, the transaction may end: its marker is written first, and what was verified would be
appended after it, to a transaction that nobody ends (KAFKA-14402). A guard is begun before the coordinator is asked and
holds until a marker of the same producer is written. Under the second transaction protocol markers raise the epoch, so
that the log itself refuses what comes late, and the marker of one transaction may come while the next is verified
(KAFKA-18575): such markers break no guard.
"""

from __future__ import annotations

# From this version of the transaction protocol on, a marker raises the producer's epoch.
_MARKERS_RAISE_EPOCHS_SINCE = 2


class Guard:
    __slots__ = ("is_broken",)

    def __init__(self) -> None:
        self.is_broken = False


class VerificationGuards:
    def __init__(self) -> None:
        # By partition and producer id: one for each request that waits for the transaction coordinator.
        self._guards: dict[tuple[int, int], set[Guard]] = {}

    def __len__(self) -> int:
        """Return the number of guards that have not been ended."""
        return sum(map(len, self._guards.values()))

    def begin(self, index: int, producer_id: int) -> Guard:
        """Return a guard for a partition and a producer, to be given to `end` whatever happens."""
        guard = Guard()
        self._guards.setdefault((index, producer_id), set()).add(guard)
        return guard

    def end(self, index: int, producer_id: int, guard: Guard) -> None:
        guards = self._guards[index, producer_id]
        guards.remove(guard)
        if not guards:
            del self._guards[index, producer_id]

    def marker_written(self, index: int, producer_id: int, transaction_version: int) -> None:
        """Break the guards of the producer whose transaction has ended in this partition."""
        if transaction_version < _MARKERS_RAISE_EPOCHS_SINCE:
            for guard in self._guards.get((index, producer_id), ()):
                guard.is_broken = True
