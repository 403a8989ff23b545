"""The quota of controller mutations: how many partitions a client may create or delete per second (KIP-599).

A client that knows the error THROTTLING_QUOTA_EXCEEDED gets it for what is over the quota. The requests of an older
one are carried out, and it is muted for as long as it takes to make up for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services

EXCEEDED = "The throttling quota has been exceeded."

Item = TypeVar("Item")


async def split_by_quota(
    services: Services,
    context: RequestContext,
    items: Iterable[Item],
    count: Callable[[Item], int],
    *,
    strict_since_version: int,
) -> tuple[list[Item], list[Item]]:
    """Return the items that the client may change now, and those that are over its quota.

    `count` returns the number of partitions that an item creates or deletes.
    """
    quotas = services.quotas
    if not quotas.is_active:
        return list(items), []
    slices = TimeSlices(services.clock.monotonic)
    admitted: list[Item] = []
    refused: list[Item] = []
    is_strict = context.api_version >= strict_since_version
    async for item in slices.over(items):
        now_s = services.clock.monotonic()
        is_admitted = quotas.may_change(context.session, count(item), now_s, is_strict=is_strict)
        (admitted if is_admitted else refused).append(item)
    return admitted, refused
