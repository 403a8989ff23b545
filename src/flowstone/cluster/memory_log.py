"""The metadata log in memory: for tests, and for several brokers of one process that form one cluster.

All brokers are given the same `MemoryLog`. An append takes effect at once and is seen by every broker before it
returns, so that all images move together.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowstone.cluster.image import EMPTY_IMAGE, ClusterImage
from flowstone.cluster.metadata_log import CommitListener, RefusalListener
from flowstone.cluster.records import MetadataRecord
from flowstone.cluster.replay import apply


class MemoryLog:
    def __init__(self) -> None:
        self._image = EMPTY_IMAGE
        self._listeners: list[CommitListener] = []

    def load(self) -> ClusterImage:
        return self._image

    def on_commit(self, listener: CommitListener) -> None:
        self._listeners.append(listener)

    def on_refusal(self, listener: RefusalListener) -> None:
        """Memory refuses nothing."""

    async def append(self, records: Sequence[MetadataRecord]) -> None:
        # No await in here: a decision and its append are one step of the event loop, so brokers cannot race.
        image = self._image = apply(self._image, records)
        for listener in self._listeners:
            listener(records, image)

    async def close(self) -> None:
        pass

    def abort(self) -> None:
        pass
