from __future__ import annotations

import asyncio
from collections.abc import Generator

from flowstone.broker.loop.time_slices import SLICE_S, TimeSlices, batched, run_in_slices, run_whole, yield_to_loop


class Steps:
    """A clock that goes on by a given time whenever it is read."""

    def __init__(self, step_s: float) -> None:
        self._now, self._step_s = 0.0, step_s

    def __call__(self) -> float:
        self._now += self._step_s
        return self._now


async def count_iterations_of_others(work: asyncio.Task[object]) -> int:
    iterations = 0
    while not work.done():
        iterations += 1
        await yield_to_loop()
    return iterations


def test_work_gives_way_only_when_its_turn_is_over() -> None:
    async def body(step_s: float) -> int:
        async def work() -> None:
            slices = TimeSlices(Steps(step_s))
            for _ in range(100):
                await slices.yield_if_due()

        return await count_iterations_of_others(asyncio.ensure_future(work()))

    assert asyncio.run(body(SLICE_S)) >= 100
    assert asyncio.run(body(0.0)) < 5


def test_items_come_in_order_with_turns_in_between() -> None:
    async def body() -> tuple[list[int], int]:
        async def work() -> list[int]:
            return [item async for item in TimeSlices(Steps(SLICE_S)).over(range(50))]

        task = asyncio.ensure_future(work())
        iterations = await count_iterations_of_others(task)
        return task.result(), iterations

    items, iterations = asyncio.run(body())
    assert items == [*range(50)]
    assert iterations >= 50


def test_a_generator_is_run_to_its_end_with_turns_where_it_yields() -> None:
    def work() -> Generator[None, None, str]:
        for _ in range(10):
            yield
        return "done"

    async def body() -> tuple[str, int]:
        task = asyncio.ensure_future(run_in_slices(work(), TimeSlices(Steps(SLICE_S))))
        iterations = await count_iterations_of_others(task)
        return task.result(), iterations

    result, iterations = asyncio.run(body())
    assert result == "done"
    assert iterations >= 10


def test_a_generator_is_run_to_its_end_at_once() -> None:
    def work() -> Generator[None, None, str]:
        yield
        yield
        return "done"

    assert run_whole(work()) == "done"


def test_a_turn_that_is_cancelled_harms_nobody() -> None:
    async def body() -> None:
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        waiting = asyncio.ensure_future(yield_to_loop())
        await asyncio.sleep(0)
        waiting.cancel()
        await yield_to_loop()
        assert waiting.cancelled()
        assert failures == []

    asyncio.run(body())


def test_batches_have_all_items_in_order() -> None:
    assert [*batched(range(7), 3)] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [*batched([], 3)] == []
