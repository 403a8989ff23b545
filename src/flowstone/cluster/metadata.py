"""A broker's running copy of the cluster's metadata: reads use `image`, changes go through the log.

Decisions are made on `proposed`, the image plus every change already handed to the log, so that two requests that
arrive together cannot both create one topic, while their records still share one flush. Reads only ever see what is
committed.

Listeners are called on the event loop, synchronously and in the log's order, before the change's maker is answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import reduce
from typing import TypeVar

from flowstone.cluster.decisions.feature_changes import check_levels
from flowstone.cluster.decisions.registration import reserve_producer_ids
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.records import MetadataRecord
from flowstone.cluster.image.replay import apply
from flowstone.cluster.logs.log_listeners import FailureListener
from flowstone.cluster.logs.metadata_log import MetadataLog, Outrun

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
# A decision: from the newest image to the records to append, and the result to return once they are committed.
Decision = tuple[Sequence[MetadataRecord], Result]
ChangeListener = Callable[[ClusterImage, ClusterImage, Sequence[MetadataRecord]], None]


class Metadata:
    def __init__(self, log: MetadataLog) -> None:
        self._log = log
        self._image = self._proposed = log.load()
        self._under_way: deque[Sequence[MetadataRecord]] = deque()
        self._listeners: list[ChangeListener] = []
        self._waits: list[Callable[[], Awaitable[None]]] = []
        self._producer_ids: Iterator[int] = iter(())
        self._reserving: asyncio.Task[None] | None = None
        log.listeners.on_commit(self._committed)
        log.listeners.on_refusal(self._refused)

    @property
    def image(self) -> ClusterImage:
        return self._image

    def on_change(self, listener: ChangeListener) -> None:
        """Call `listener(before, after, records)` for every append from now on."""
        self._listeners.append(listener)

    def on_failure(self, listener: FailureListener) -> None:
        """Call `listener(fault)` when the log holds what this release cannot follow: the broker must stop."""
        self._log.listeners.on_failure(listener)

    def on_wait(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Await `wait` before the caller of a change is answered: a listener may finish its work later."""
        self._waits.append(wait)

    async def change(self, decide: Callable[[ClusterImage], Decision[Result]]) -> Result:
        """Decide on the newest image, append the change, and return the decision's result once it is committed."""
        while True:  # each iteration except the last means that another broker made a change
            records, result = decide(self._proposed)
            with suppress(Outrun):
                await self.append(records)
                if records:
                    for wait in self._waits:
                        await wait()
                return result

    async def append(self, records: Sequence[MetadataRecord]) -> None:
        """Append records and return once they are durable and applied.

        Raises Outrun if another broker's append came first, ApiError if the disk is full or a record is newer than the
        cluster's metadata level, and StorageFault if the log has failed.
        """
        if not records:
            return
        check_levels(self._proposed, records)
        self._proposed = apply(self._proposed, records)
        self._under_way.append(records)
        await self._log.append(records)

    async def next_producer_id(self) -> int:
        """Return a producer id that no broker ever returned before; most come from a block reserved earlier.

        The caller may be cancelled: the next block is reserved for all callers.
        """
        while (producer_id := next(self._producer_ids, None)) is None:
            if self._reserving is None or self._reserving.done():
                self._reserving = asyncio.ensure_future(self._reserve_producer_ids())
            await asyncio.shield(self._reserving)
        return producer_id

    async def _reserve_producer_ids(self) -> None:
        self._producer_ids = iter(await self.change(reserve_producer_ids))

    async def close(self) -> None:
        await self._log.close()

    def abort(self) -> None:
        self._log.abort()

    def _committed(self, records: Sequence[MetadataRecord], image: ClusterImage) -> None:
        before, self._image = self._image, image
        if self._under_way and self._under_way[0] is records:
            self._under_way.popleft()
        else:
            # Another broker was first: our own pending changes come after its.
            self._proposed = reduce(apply, self._under_way, self._image)
        for listener in self._listeners:
            try:
                listener(before, image, records)
            except Exception:  # the change is committed: a listener that fails must not stop the others
                logger.exception("a listener failed at metadata version %d", image.version)

    def _refused(self) -> None:
        """Reset to the committed image: nothing pending will be committed."""
        self._under_way.clear()
        self._proposed = self._image
