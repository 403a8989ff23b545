"""How OffsetFetch shares the event loop; what it answers is in test_groups.py."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from flowstone.broker.handlers import offset_fetch
from flowstone.broker.loop.time_slices import others_turn
from flowstone.broker.requests.context import RequestContext
from flowstone.broker.requests.session import ClientSession
from flowstone.ports.clock import Clock
from flowstone.wire import messages as m
from tests.support.running_app import RunningApp

TOPICS = 1000


class HurriedClock:
    """A clock by which every turn on the loop is over as soon as it begins."""

    def __init__(self) -> None:
        self._seconds = itertools.count()

    def monotonic(self) -> float:
        return next(self._seconds)


async def turns_of_others(work: Coroutine[Any, Any, m.OffsetFetchResponse]) -> tuple[int, m.OffsetFetchResponse]:
    """How often other work on the loop ran before this was done, and what this returned."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await others_turn()
            turns += 1

    beside = asyncio.ensure_future(others())
    response = await work
    beside.cancel()
    with suppress(asyncio.CancelledError):
        await beside
    return turns, response


@pytest.mark.parametrize("version", [1, 7])
def test_every_step_of_a_lookup_of_many_topics_lets_others_run(tmp_path: Path, version: int) -> None:
    topics = [m.OffsetFetchRequestTopic(name=f"t{index}", partition_indexes=[0] * 5) for index in range(TOPICS)]
    request = m.OffsetFetchRequest(group_id="g", topics=topics)
    with RunningApp(str(tmp_path)) as running:
        with running.client() as client:
            client.ask(4, m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
        services = replace(running.app.services, clock=cast(Clock, HurriedClock()))
        context = RequestContext(9, version, 1, ClientSession("PLAINTEXT", "127.0.0.1:1"))
        work = cast(Coroutine[Any, Any, m.OffsetFetchResponse], offset_fetch.handle(services, context, request))
        turns, response = running.run(turns_of_others(work))
    assert [topic.name for topic in response.topics] == [topic.name for topic in topics]
    # One for each topic asked for, and one for each topic of the response.
    assert turns >= 2 * TOPICS
