"""Guards against an end marker that is written while the transaction coordinator is asked about a producer's batch.

The coordinator's answer says that the producer's transaction includes the partition. The marker that ends this
transaction may be in the log before the answer arrives; a batch appended after that would open a transaction which no
marker ever ends, and hold back the last stable offset for good. So a guard is made before the coordinator is asked, and
an end marker makes it stale.

Under the second version of the protocol a marker with the guard's own epoch ends the transaction before: the epoch
rises with each end. Such a marker leaves the guard as it is.

In memory only, and one guard per producer: the caller asks about one batch of a producer at a time.
"""

from __future__ import annotations


class VerificationGuard:
    """The state of one question to the coordinator: `is_stale` once its answer must not be used."""

    __slots__ = ("epoch", "is_stale", "rises_with_markers")

    def __init__(self, epoch: int, *, rises_with_markers: bool) -> None:
        self.epoch, self.rises_with_markers = epoch, rises_with_markers
        self.is_stale = False


class VerificationGuards:
    __slots__ = ("_guards",)

    def __init__(self) -> None:
        self._guards: dict[int, VerificationGuard] = {}

    def __len__(self) -> int:
        return len(self._guards)

    def begin(self, producer_id: int, epoch: int, *, rises_with_markers: bool) -> VerificationGuard:
        """Return a new guard of a producer's batch. An older guard of the producer becomes stale.

        `rises_with_markers` says that the producer's epoch rises with each end marker: the second protocol version.
        """
        self._drop(producer_id)
        guard = self._guards[producer_id] = VerificationGuard(epoch, rises_with_markers=rises_with_markers)
        return guard

    def end(self, producer_id: int, guard: VerificationGuard) -> None:
        """Forget a guard that is not needed any more."""
        guard.is_stale = True
        if self._guards.get(producer_id) is guard:
            del self._guards[producer_id]

    def marker_applied(self, producer_id: int, marker_epoch: int) -> None:
        """Note an end marker in the log: the producer's guard is stale unless the marker ends a transaction before."""
        guard = self._guards.get(producer_id)
        if guard is not None and not (guard.rises_with_markers and marker_epoch <= guard.epoch):
            self._drop(producer_id)

    def _drop(self, producer_id: int) -> None:
        guard = self._guards.pop(producer_id, None)
        if guard is not None:
            guard.is_stale = True
