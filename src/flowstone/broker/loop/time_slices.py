"""Time slices on the event loop: long work yields to other work again and again.

Nothing may hold the loop for more than a few hundredths of a second. Work that grows with a request or with the cluster
therefore calls `TimeSlices.yield_if_due` after each part of it, or is a generator that `run_in_slices` runs.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from typing import TypeVar

# The length of a time slice.
SLICE_S = 0.005
# Items of a few microseconds each, handled before the clock is read.
BATCH_ITEMS = 500

T = TypeVar("T")


async def yield_to_loop() -> None:
    """Yield until everything else that is ready on the loop has run."""
    loop = asyncio.get_running_loop()
    resumed: asyncio.Future[None] = loop.create_future()
    loop.call_soon(_end, resumed)
    await resumed


def _end(resumed: asyncio.Future[None]) -> None:
    if not resumed.done():  # the waiting task may have been cancelled
        resumed.set_result(None)


class TimeSlices:
    """The time slices of one piece of work on the event loop; the first begins now."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        """Begin the first slice. `monotonic` is the clock port's; in simulated time a slice has no end."""
        self._monotonic = monotonic
        self._ends = monotonic() + SLICE_S

    async def yield_if_due(self) -> None:
        """Yield to other work if this time slice is over, and begin the next one."""
        if self._monotonic() >= self._ends:
            await yield_to_loop()
            self._ends = self._monotonic() + SLICE_S

    async def over(self, items: Iterable[T]) -> AsyncIterator[T]:
        """Yield the items one after the other, and yield to other work between time slices."""
        for item in items:
            yield item
            if self._monotonic() >= self._ends:
                await yield_to_loop()
                self._ends = self._monotonic() + SLICE_S


def batched(items: Iterable[T], size: int = BATCH_ITEMS) -> Iterator[list[T]]:
    """Yield the items in lists of `size`; the last list may be shorter."""
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


async def run_in_slices(work: Generator[None, None, T], slices: TimeSlices) -> T:
    """Run the generator to its end and return its value; other work may run wherever it yields."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            value: T = end.value
            return value
        await slices.yield_if_due()


def run_whole(work: Generator[None, None, T]) -> T:
    """Run the generator to its end at once and return its value: for work that is known to be short."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            value: T = end.value
            return value
