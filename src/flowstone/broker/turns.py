"""Letting others on the event loop go first in the middle of something long."""

from __future__ import annotations

import asyncio


async def others_turn() -> None:
    """Lets everything else that is ready on the loop run."""
    loop = asyncio.get_running_loop()
    turn: asyncio.Future[None] = loop.create_future()
    loop.call_soon(turn.set_result, None)
    await turn
