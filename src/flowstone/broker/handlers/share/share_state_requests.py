"""Requests that brokers send to the share coordinator: each share partition they name goes to its shard.

Every share partition gets a result of its own. One whose state is not on this broker is NOT_COORDINATOR.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flowstone.broker.coordinators.share.share_coordinator import ShareCall
from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import Services
from flowstone.coordinator.runtime import Token
from flowstone.coordinator.share.records import ShareKey
from flowstone.errors import ApiError


async def answer(
    services: Services,
    group_id: str,
    topics: Sequence[Any],
    call: Callable[[ShareKey, Any], ShareCall],
    result: Callable[[int, Any], Any],
    failed: Callable[[int, int, str | None], Any],
) -> list[tuple[bytes, list[Any]]]:
    """Return the results by topic id.

    `call` makes the request to the shard from a share partition and what the request says of it; `result` and `failed`
    make a partition's result from the shard's response, or from an error code and message.
    """
    slices = TimeSlices(services.clock.monotonic)
    coordinator = services.share_states.coordinator
    asked: list[tuple[bytes, list[tuple[int, Token]]]] = []
    for topic in topics:
        tokens = []
        async for each in slices.over(topic.partitions):
            key = ShareKey(group_id, topic.topic_id, each.partition)
            tokens.append((each.partition, coordinator.request(key, call(key, each))))
        asked.append((topic.topic_id, tokens))
    answers = []
    for topic_id, tokens in asked:
        results = []
        for partition, token in tokens:
            try:
                results.append(result(partition, await token))
            except ApiError as error:
                results.append(failed(partition, error.code, error.message))
            await slices.yield_if_due()
        answers.append((topic_id, results))
    return answers
