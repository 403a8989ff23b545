"""Changes of the metadata on behalf of a client, with the client's timeout.

As long as the metadata log answers, a change takes milliseconds. A broker that is cut off from it cannot tell when it
will answer again: the client gets REQUEST_TIMED_OUT, as in Kafka, and the change under way may still be made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

from flowstone.broker.loop.loop_time import start
from flowstone.broker.loop.time_slices import yield_to_loop
from flowstone.broker.requests.context import Services
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.metadata import Decision
from flowstone.errors import ApiError, ErrorCode
from flowstone.ports.clock import done_within

# The timeout of requests that have none.
CHANGE_TIMEOUT_MS = 30_000
# The shortest timeout: some clients send 0, and a change takes a few milliseconds.
CHANGE_TIMEOUT_MIN_MS = 1_000

# The size of a part that is decided and applied at once: a created topic or a changed partition counts 1.
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
    """Run `change` for many items, in parts that are small enough not to delay other requests.

    Each part is a change of its own. A request that fails in the middle does not undo the parts before it. `weigh`
    returns the cost of an item; a part costs `PART_WEIGHT`.
    """
    deadline = services.clock.monotonic() + timeout_ms / 1000
    results: list[Result] = []
    for part in _parts(items, weigh):
        left_ms = int(1000 * (deadline - services.clock.monotonic()))
        results += await change(services, partial(_decide_part, decide, part), left_ms)
        await yield_to_loop()
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
    """Make one change of the metadata. Raises ApiError if it is not made within the timeout."""
    changing = start(services.metadata.change(decide))
    if await done_within(services.clock, changing, max(timeout_ms, CHANGE_TIMEOUT_MIN_MS) / 1000):
        return changing.result()
    changing.add_done_callback(_forget)
    raise ApiError(
        ErrorCode.REQUEST_TIMED_OUT, "the cluster's metadata log did not answer in time; the change may still be made"
    )


def _forget(changing: asyncio.Future[Result]) -> None:
    """Ignore the outcome of a change that timed out."""
    if not changing.cancelled():
        changing.exception()
