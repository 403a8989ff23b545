"""Answers that come later: coroutines that leave something parked behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from flowstone.broker.dispatch.deferred import Deferred, Outcome, Slot
from flowstone.errors import ProtocolError
from flowstone.promise import Promise


def encode(outcome: Outcome) -> list[Any]:
    return [outcome.result()]


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


class Answering:
    """A slot whose coroutine returns a promise once it is allowed to."""

    def __init__(self) -> None:
        self.parked: Promise[bytes] = Promise()
        self.may_end = asyncio.Event()
        self.heard: list[tuple[bool, list[Any] | None]] = []
        self.slot = Slot(Deferred(asyncio.ensure_future(self._work()), encode), self._on_answered, self._on_parked)

    async def _work(self) -> Promise[bytes]:
        await self.may_end.wait()
        return self.parked

    def _on_parked(self) -> None:
        self.heard.append((self.slot.is_at_work, None))

    def _on_answered(self, slot: Slot) -> None:
        self.heard.append((slot.is_at_work, slot.chunks))


def test_a_coroutine_that_leaves_a_promise_ends_its_work_before_there_is_an_answer() -> None:
    async def scenario() -> None:
        answering = Answering()
        await settle()
        assert answering.slot.is_at_work
        assert answering.heard == []
        answering.may_end.set()
        await settle()
        assert answering.heard == [(False, None)]
        answering.parked.set_result(b"answer")
        assert answering.heard == [(False, None), (False, [b"answer"])]

    asyncio.run(scenario())


def test_a_promise_that_is_kept_already_is_the_answer_at_once() -> None:
    async def scenario() -> None:
        answering = Answering()
        answering.parked.set_result(b"answer")
        answering.may_end.set()
        await settle()
        assert answering.heard == [(False, [b"answer"])]

    asyncio.run(scenario())


def test_what_a_coroutine_left_is_cancelled_with_its_connection() -> None:
    async def scenario() -> None:
        for cancels_early in (True, False):
            answering = Answering()
            if cancels_early:
                answering.slot.cancel()
            answering.may_end.set()
            await settle()
            if not cancels_early:
                answering.slot.cancel()
            assert answering.parked.cancelled()
            assert not [chunks for _, chunks in answering.heard if chunks]

    asyncio.run(scenario())


def failure_of(happen: Callable[[asyncio.Future[Any]], object], encode: Callable[[Outcome], list[Any]] = encode) -> str:
    """Why a slot's connection has to be closed after this happened to the answer that it waits for."""

    async def scenario() -> str:
        outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answered: list[Slot] = []
        slot = Slot(Deferred(outcome, encode), answered.append)
        happen(outcome)
        await settle()
        assert answered == [slot]
        assert slot.chunks is None
        assert slot.failure is not None
        return slot.failure

    return asyncio.run(scenario())


def test_an_answer_that_the_broker_takes_back_says_that_it_is_stopping() -> None:
    assert failure_of(lambda outcome: outcome.cancel()) == "the broker is stopping"


def test_an_answer_that_breaks_the_protocol_says_how() -> None:
    def refuse(outcome: Outcome) -> list[Any]:
        raise ProtocolError("no such version")

    assert failure_of(lambda outcome: outcome.set_result(b"answer"), refuse) == "no such version"
