"""Time slices on the event loop: long work yields to other work again and again.

Nothing may hold the loop for more than a few hundredths of a second. Work that grows with a request or with the cluster
therefore calls `Turns.give_way` after each part of it, or is a generator that `run_in_slices` runs.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from typing import TypeVar

# The length of a time slice.
TURN_S = 0.005
# Items of a few microseconds each, handled before the clock is read.
BATCH_ITEMS = 500

T = TypeVar("T")


async def others_turn() -> None:
    """Yield until everything else that is ready on the loop has run."""
    loop = asyncio.get_running_loop()
    turn: asyncio.Future[None] = loop.create_future()
    loop.call_soon(_end, turn)
    await turn


def _end(turn: asyncio.Future[None]) -> None:
    if not turn.done():  # the waiting task may have been cancelled
        turn.set_result(None)


class Turns:
    """The turns that one piece of work takes on the loop; the first begins now."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        """`monotonic` is the clock port's: with a simulated clock, in which no time passes, a turn has no end."""
        self._monotonic = monotonic
        self._ends = monotonic() + TURN_S

    async def give_way(self) -> None:
        """Yield to other work if this turn is over, and begin the next turn."""
        if self._monotonic() >= self._ends:
            await others_turn()
            self._ends = self._monotonic() + TURN_S

    async def over(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Yield the items one after the other, with turns for other work in between."""
        for item in items:
            yield item
            if self._monotonic() >= self._ends:
                await others_turn()
                self._ends = self._monotonic() + TURN_S


def batched(items: Iterable[T], size: int = BATCH_ITEMS) -> Iterator[list[T]]:
    """Yield the items in lists of `size`; the last list may be shorter."""
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


async def run_in_slices(work: Generator[None, None, T], turns: Turns) -> T:
    """Run the generator to its end and return its value; other work may run wherever it yields."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            value: T = end.value
            return value
        await turns.give_way()
