"""The metadata log's interface. Where it lives (a file, memory, ZooKeeper) is known to its homes only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.records import MetadataRecord
from flowstone.cluster.logs.log_listeners import LogListeners


class Outrun(Exception):
    """Another broker's append came first, and the listeners have seen it; nothing came of this one: decide again."""


class PendingAppend(NamedTuple):
    """Records that wait to be written, and the future that tells their maker what came of them."""

    records: Sequence[MetadataRecord]
    committed: asyncio.Future[None]


def fail_all(pending: Iterable[PendingAppend], error: Exception) -> None:
    """Raise the error in every maker that still waits."""
    for _, committed in pending:
        if not committed.done():
            committed.set_exception(error)


class MetadataLog(Protocol):
    @property
    def listeners(self) -> LogListeners: ...

    def load(self) -> ClusterImage:
        """The image of everything committed so far. Called once, before the first append; may block."""
        ...

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
