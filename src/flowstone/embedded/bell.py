"""Waiting, on the broker's loop, for a partition to have more to read or for the cluster to change."""

from __future__ import annotations

import asyncio


class Bell:
    """A partition's watcher: rung when there is more to read, or when things are not what they were."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def advanced(self, size_bytes: int) -> None:
        self._event.set()

    def interrupted(self) -> None:
        self._event.set()

    async def rung(self) -> None:
        await self._event.wait()
        self._event.clear()
