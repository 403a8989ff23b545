"""Changes of the metadata that a client waits for, no longer than it says.

Where the metadata's log answers, a change takes milliseconds and nobody's patience matters. A broker that is cut off
from it cannot tell when it will answer again: whoever asks hears REQUEST_TIMED_OUT, as in Kafka, and the change, which
is on its way, may still be made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

from flowstone.broker.loop.loop_time import start
from flowstone.broker.loop.time_slices import others_turn
from flowstone.broker.requests.context import Services
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.metadata import Decision
from flowstone.errors import ApiError, ErrorCode
from flowstone.ports.clock import done_within

# Of requests that do not say how long they wait.
CHANGE_TIMEOUT_MS = 30_000
# Some clients say that they do not wait at all; a moment later they would have had their answer.
CHANGE_TIMEOUT_MIN_MS = 1_000

# What is decided and done at once: a topic that is made or a partition that is changed weighs 1.
PART_WEIGHT = 100

Result = TypeVar("Result")
Item = TypeVar("Item")


async def change_in_parts(
    services: Services,
    items: Iterable[Item],
    decide: Callable[[ClusterImage, list[Item]], Decision[list[Result]]],
    timeout_ms: int = CHANGE_TIMEOUT_MS,
    weigh: Callable[[Item], int] = lambda _: 1,
) -> list[Result]:
    """Run `change` for many items, in parts that are small enough for other requests not to wait for long.

    Each part is a change of its own. A request that fails in the middle leaves what was done before, as it says.
    `weigh` says how much work an item is, `PART_WEIGHT` being one turn of the loop.
    """
    deadline = services.clock.monotonic() + timeout_ms / 1000
    results: list[Result] = []
    for part in _parts(items, weigh):
        left_ms = int(1000 * (deadline - services.clock.monotonic()))
        results += await change(services, partial(_decide_part, decide, part), left_ms)
        await others_turn()
    return results


def _decide_part(
    decide: Callable[[ClusterImage, list[Item]], Decision[list[Result]]], part: list[Item], image: ClusterImage
) -> Decision[list[Result]]:
    return decide(image, part)


def _parts(items: Iterable[Item], weigh: Callable[[Item], int]) -> Iterator[list[Item]]:
    part: list[Item] = []
    weight = 0
    for item in items:
        part.append(item)
        weight += weigh(item)
        if weight >= PART_WEIGHT:
            yield part
            part, weight = [], 0
    if part:
        yield part


async def change(
    services: Services, decide: Callable[[ClusterImage], Decision[Result]], timeout_ms: int = CHANGE_TIMEOUT_MS
) -> Result:
    """As `Metadata.change`; ApiError if it is not made in time."""
    changing = start(services.metadata.change(decide))
    if await done_within(services.clock, changing, max(timeout_ms, CHANGE_TIMEOUT_MIN_MS) / 1000):
        return changing.result()
    changing.add_done_callback(_forget)
    raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "the cluster's metadata cannot be reached; it may still be done")


def _forget(changing: asyncio.Future[Result]) -> None:
    """Nobody waits for it any more, whatever becomes of it."""
    if not changing.cancelled():
        changing.exception()
