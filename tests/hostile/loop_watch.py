"""How long a broker's event loop is held at a stretch: processor time of its thread between two turns of the loop.

Processor time and not the clock's: what other programs of the machine take does not count.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from contextlib import suppress

from flowstone.broker.loop.time_slices import yield_to_loop
from tests.support.running_app import LoopThread


class LoopWatch:
    """`with LoopWatch(loop) as watch: ...; watch.longest_s`; the longest stretch inside the block."""

    def __init__(self, loop: LoopThread) -> None:
        self._loop = loop
        self.longest_s = 0.0
        self._watching: asyncio.Task[None] | None = None

    def __enter__(self) -> LoopWatch:
        self._watching = self._loop.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        ended: Future[None] = Future()
        watching = self._watching
        assert watching is not None
        watching.add_done_callback(lambda _: ended.set_result(None))
        self._loop.call(watching.cancel)
        ended.result(10)

    async def _start(self) -> asyncio.Task[None]:
        return asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        with suppress(asyncio.CancelledError):
            while True:
                started = time.thread_time()
                await yield_to_loop()
                self.longest_s = max(self.longest_s, time.thread_time() - started)
