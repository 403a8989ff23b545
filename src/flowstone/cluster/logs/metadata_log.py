"""The metadata log's interface. Only its implementations know whether it is in a file, in memory or in ZooKeeper."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.records import MetadataRecord
from flowstone.cluster.logs.log_listeners import LogListeners


class Outrun(Exception):
    """Another broker's append came first, and the listeners have seen it; this one was not made: decide again."""


class PendingAppend(NamedTuple):
    """Records that wait to be written, and the future that tells their caller the outcome."""

    records: Sequence[MetadataRecord]
    committed: asyncio.Future[None]


def fail_all(pending: Iterable[PendingAppend], error: Exception) -> None:
    """Raise the error in every caller that still waits."""
    for _, committed in pending:
        if not committed.done():
            committed.set_exception(error)


class MetadataLog(Protocol):
    @property
    def listeners(self) -> LogListeners: ...

    def load(self) -> ClusterImage:
        """Return the image of everything committed so far. Called once, before the first append; may block."""
        ...

    async def append(self, records: Sequence[MetadataRecord]) -> None:
        """Append all or nothing, after every earlier append; on return it is durable and every listener has seen it.

        Raises Outrun, and appends nothing, if the records were decided on an image that is no longer the newest
        (appends are a compare-and-set on the log's end). Raises ApiError, and appends nothing, if the disk was full for
        this append or one before it. Raises StorageFault if the outcome is unknown; the log then accepts no more.
        """
        ...

    async def close(self) -> None:
        """Wait for pending appends and close the log."""
        ...

    def abort(self) -> None:
        """Stop at once, as if the process were killed: nothing is written once this returns."""
        ...
