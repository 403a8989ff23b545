from __future__ import annotations

import asyncio

import pytest

from flowstone.promise import Promise


def test_callbacks_hear_at_once_and_in_order() -> None:
    promise: Promise[str] = Promise()
    heard: list[str] = []
    promise.add_done_callback(lambda done: heard.append("first " + done.result()))
    promise.add_done_callback(lambda done: heard.append("second " + done.result()))
    promise.set_result("result")
    assert heard == ["first result", "second result"]


def test_who_comes_late_hears_at_once_too() -> None:
    promise: Promise[int] = Promise()
    promise.set_result(7)
    heard: list[int] = []
    promise.add_done_callback(lambda done: heard.append(done.result()))
    assert heard == [7]


def test_cancelling_tells_the_callbacks_and_does_nothing_to_what_is_done() -> None:
    promise: Promise[int] = Promise()
    heard: list[bool] = []
    promise.add_done_callback(lambda done: heard.append(done.cancelled()))
    promise.cancel()
    promise.cancel()
    assert heard == [True]
    done: Promise[int] = Promise()
    done.set_result(1)
    done.cancel()
    assert not done.cancelled()
    assert done.result() == 1


def test_a_promise_can_be_awaited_before_and_after_it_is_kept() -> None:
    async def body() -> None:
        promise: Promise[str] = Promise()
        asyncio.get_running_loop().call_soon(promise.set_result, "kept")
        assert await promise == "kept"
        assert await promise == "kept"

    asyncio.run(body())


def test_awaiting_raises_what_went_wrong() -> None:
    async def body() -> None:
        promise: Promise[str] = Promise()
        asyncio.get_running_loop().call_soon(promise.set_exception, OSError("no disk"))
        with pytest.raises(OSError, match="no disk"):
            await promise

    asyncio.run(body())


def test_a_task_that_gives_up_waiting_leaves_the_promise_alone() -> None:
    async def body() -> None:
        promise: Promise[str] = Promise()

        async def wait() -> str:
            return await promise

        task = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        promise.set_result("kept")
        assert promise.result() == "kept"

    asyncio.run(body())
