"""How long anything holds an event loop: the processor time of its thread from one turn of the loop to the next.

Processor time, so that a busy machine changes little. While it runs the loop never sleeps. What the test process has in
memory already is kept from the garbage collector, which would otherwise go through all of it within a turn.
"""

from __future__ import annotations

import asyncio
import gc
import time
from types import TracebackType
from typing import Self

from tests.support.running_app import LoopThread


class LoopProbe:
    """`with LoopProbe(app) as probe: …`; then `probe.longest_s` is the longest turn of the loop meanwhile."""

    def __init__(self, thread: LoopThread) -> None:
        self._thread = thread
        self._last_s: float | None = None
        self._is_on = True
        self.longest_s = 0.0

    def __enter__(self) -> Self:
        gc.collect()
        gc.freeze()
        self._thread.call(self._turn)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_on = False
        self._thread.call(lambda: None)
        gc.unfreeze()

    def _turn(self) -> None:
        now_s = time.thread_time()
        if self._last_s is not None:
            self.longest_s = max(self.longest_s, now_s - self._last_s)
        self._last_s = now_s
        if self._is_on:
            asyncio.get_running_loop().call_soon(self._turn)
