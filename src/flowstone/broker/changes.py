"""Changes of the metadata that a client waits for, no longer than it says.

Where the metadata's log answers, a change takes milliseconds and nobody's patience matters. A broker that is cut off
from it cannot tell when it will answer again: whoever asks hears REQUEST_TIMED_OUT, as in Kafka, and the change, which
is on its way, may still be made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from flowstone.broker.context import Services
from flowstone.cluster.image import ClusterImage
from flowstone.cluster.metadata import Decision
from flowstone.errors import ApiError, ErrorCode

# Of requests that do not say how long they wait.
CHANGE_TIMEOUT_MS = 30_000
# Some clients say that they do not wait at all; a moment later they would have had their answer.
CHANGE_TIMEOUT_MIN_MS = 1_000

Result = TypeVar("Result")


async def change(
    services: Services, decide: Callable[[ClusterImage], Decision[Result]], timeout_ms: int = CHANGE_TIMEOUT_MS
) -> Result:
    """As `Metadata.change`; ApiError if it is not made in time."""
    changing = asyncio.ensure_future(services.metadata.change(decide))
    patience = asyncio.ensure_future(services.clock.sleep(max(timeout_ms, CHANGE_TIMEOUT_MIN_MS) / 1000))
    try:
        await asyncio.wait((changing, patience), return_when=asyncio.FIRST_COMPLETED)
    finally:
        patience.cancel()
    if changing.done():
        return changing.result()
    changing.add_done_callback(_forget)
    raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "the cluster's metadata cannot be reached; it may still be done")


def _forget(changing: asyncio.Future[Result]) -> None:
    """Nobody waits for it any more, whatever becomes of it."""
    if not changing.cancelled():
        changing.exception()
