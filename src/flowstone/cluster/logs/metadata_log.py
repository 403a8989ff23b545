"""The metadata log's interface. Where it lives (a file, memory, later ZooKeeper) is known to its homes only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.records import MetadataRecord

# Called on the event loop for each append, in the log's order, once it is committed: its records, the image after them.
CommitListener = Callable[[Sequence[MetadataRecord], ClusterImage], None]


# Called when appends were refused without a trace: whatever is not committed yet will not be.
RefusalListener = Callable[[], None]


class Outrun(Exception):
    """Another broker's append came first, and the listeners have seen it; nothing came of this one: decide again."""


class MetadataLog(Protocol):
    def load(self) -> ClusterImage:
        """The image of everything committed so far. Called once, before the first append; may block."""
        ...

    def on_commit(self, listener: CommitListener) -> None:
        """From now on the listener sees every append, this broker's own (the very object it gave) and others'."""
        ...

    def on_refusal(self, listener: RefusalListener) -> None: ...

    async def append(self, records: Sequence[MetadataRecord]) -> None:
        """All or nothing, after every append begun before it; durable, and seen by every listener, on return.

        `Outrun` means that it was decided on an image that is no longer the newest (appends are a compare-and-set on
        the log's end); `ApiError` that there was no room for it or for one before it: nothing came of it then.
        `StorageFault` means that the outcome is unknown and that this log takes no more.
        """
        ...

    async def close(self) -> None:
        """Waits for the appends under way."""
        ...

    def abort(self) -> None:
        """Ends at once, as a killed process would: nothing is written once it returns."""
        ...
