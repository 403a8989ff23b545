"""Copies the offsets that groups have committed in a topic to a branch of it, in requests that take little time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from heapq import merge
from typing import Any

from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import Services
from flowstone.coordinator.groups.branching import BranchOffsetsRequest
from flowstone.coordinator.groups.shard import GroupShard
from flowstone.coordinator.runtime import Token

# Offsets that one request to a shard copies, at about 30 microseconds each; it is also the length of a list of groups.
OFFSETS_AT_ONCE = 500


async def copy_offsets(services: Services, source: str, target: str, end_offsets: Sequence[int]) -> tuple[str, ...]:
    """Return the groups of which offsets were copied. Raises ApiError if a shard is not available."""
    slices = TimeSlices(services.clock.monotonic)
    counting = services.groups.request_each(lambda shard, now_ms, token: shard.count_offsets(now_ms, token))
    counts = [(await token).counts for token in [token async for token in slices.over(counting)]]
    copied: set[str] = set()
    asked = (each for some in counts for each in _requests(source, target, some, end_offsets))
    async for request in slices.over(asked):
        copied.update((await _ask(services, request)).group_ids)
    parts = [sorted(some) async for some in slices.over(_parts(list(copied)))]
    return tuple([group_id async for group_id in slices.over(merge(*parts))])


def _ask(services: Services, request: BranchOffsetsRequest) -> Token:
    """Ask the shard of the request's groups: all of them are in the same one."""

    def call(shard: GroupShard, now_ms: int, token: Any) -> Any:
        return shard.branch_offsets(now_ms, token, request)

    return services.groups.request(request.group_ids[0], call)


def _requests(
    source: str, target: str, counts: Sequence[tuple[str, int]], end_offsets: Sequence[int]
) -> Iterator[BranchOffsetsRequest]:
    """Yield the requests for the groups of a shard, given how many offsets each has."""
    asked = partial(BranchOffsetsRequest, source, target)
    whole = tuple(end_offsets)
    together: list[str] = []
    left = OFFSETS_AT_ONCE
    for group_id, count in counts:
        if min(count, len(whole)) > OFFSETS_AT_ONCE:
            for first in range(0, len(whole), OFFSETS_AT_ONCE):
                yield asked((group_id,), whole[first : first + OFFSETS_AT_ONCE], first)
            continue
        together.append(group_id)
        left -= max(1, min(count, len(whole)))
        if left <= 0:
            yield asked(tuple(together), whole)
            together, left = [], OFFSETS_AT_ONCE
    if together:
        yield asked(tuple(together), whole)


def _parts(names: list[str]) -> Iterator[list[str]]:
    return (names[at : at + OFFSETS_AT_ONCE] for at in range(0, len(names), OFFSETS_AT_ONCE))
