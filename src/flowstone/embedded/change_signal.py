"""Waiting, on the broker's event loop, until a partition has more to read or the cluster has changed."""

from __future__ import annotations

import asyncio


class ChangeSignal:
    """A watcher of a partition that is notified when there is more to read or the partition's state has changed."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def advanced(self, size_bytes: int) -> None:
        self._event.set()

    def interrupted(self) -> None:
        self._event.set()

    async def changed(self) -> None:
        await self._event.wait()
        self._event.clear()
