"""The metadata log's interface. Where it lives (a file, memory, later ZooKeeper) is known to its homes only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from flowstone.cluster.image import ClusterImage
from flowstone.cluster.records import MetadataRecord

# Called on the event loop for each append, in the log's order, once it is committed: its records, the image after them.
CommitListener = Callable[[Sequence[MetadataRecord], ClusterImage], None]


class MetadataLog(Protocol):
    def load(self) -> ClusterImage:
        """The image of everything committed so far. Called once, before the first append; may block."""
        ...

    def on_commit(self, listener: CommitListener) -> None:
        """From now on the listener sees every append, this broker's own (the very object it gave) and others'."""
        ...

    async def append(self, records: Sequence[MetadataRecord]) -> None:
        """All or nothing, after every append begun before it; durable, and seen by every listener, on return.

        `StorageFault` means that the outcome is unknown and that this log takes no more.
        """
        ...

    async def close(self) -> None:
        """Waits for the appends under way."""
        ...

    def abort(self) -> None:
        """Ends at once, as a killed process would: nothing is written once it returns."""
        ...
