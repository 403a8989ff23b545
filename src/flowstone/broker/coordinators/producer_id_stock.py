"""A small reserve of producer ids for the transaction coordinator, whose state machine cannot wait for one.

Ids come from `Metadata.next_producer_id`, which is asynchronous because blocks of ids are reserved in the metadata log.
An id is used at most once; those left when the broker stops are never used.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from flowstone.cluster.metadata import Metadata
from flowstone.errors import FlowstoneError
from flowstone.ports.clock import Clock, done_within

logger = logging.getLogger(__name__)

STOCK_SIZE = 100
# The stock is filled up again when no more than so many ids are left.
STOCK_LOW = 50


class ProducerIdStock:
    def __init__(self, metadata: Metadata, clock: Clock) -> None:
        self._metadata, self._clock = metadata, clock
        self._ids: deque[int] = deque()
        self._filling: asyncio.Task[None] | None = None

    def take(self) -> int | None:
        """Return an unused id, or None if none is available; in any case request more ids if the reserve is low."""
        taken = self._ids.popleft() if self._ids else None
        if len(self._ids) <= STOCK_LOW:
            self._fill()
        return taken

    async def wait_filled(self, timeout_s: float) -> None:
        """Return when an id is available, or when `timeout_s` has passed."""
        if not self._ids:
            await done_within(self._clock, self._fill(), timeout_s)

    def close(self) -> None:
        if self._filling is not None:
            self._filling.cancel()

    def _fill(self) -> asyncio.Task[None]:
        if self._filling is None or self._filling.done():
            self._filling = asyncio.ensure_future(self._reserve())
        return self._filling

    async def _reserve(self) -> None:
        try:
            while len(self._ids) < STOCK_SIZE:
                self._ids.append(await self._metadata.next_producer_id())
        except FlowstoneError as error:
            logger.warning("no producer ids can be reserved for transactions: %s", error)
