"""How long a broker's event loop is held at a stretch: the time between two turns of the loop, and where it went.

By the clock a stretch also has the time for which the system gave the processor to other programs. That is taken off
(`preempted_s`), and nothing else: what the thread ran, collections of garbage included, and what it waited for the
disk, a lock or the interpreter's lock, is the broker's own.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import NamedTuple

from flowstone.broker.loop.time_slices import yield_to_loop
from tests.support.running_app import LoopThread

# Of the calling thread: nanoseconds on a processor, nanoseconds ready to run but without one, times it got one.
SCHEDULER_FILE = "/proc/thread-self/schedstat"


class Stretch(NamedTuple):
    """The time between two turns of the loop."""

    wall_s: float = 0.0
    # Processor time of the loop's thread, and the part of it in the garbage collector.
    ran_s: float = 0.0
    collected_s: float = 0.0
    # The thread was ready to run, and other threads had the processors.
    preempted_s: float = 0.0

    @property
    def held_s(self) -> float:
        """All of it but what other programs took."""
        return max(self.ran_s, self.wall_s - self.preempted_s)

    @property
    def blocked_s(self) -> float:
        """The thread waited: for the disk, a lock or the interpreter's lock."""
        return self.held_s - self.ran_s

    def __str__(self) -> str:
        parts = f"ran {_ms(self.ran_s)}, of it collecting {_ms(self.collected_s)}; blocked {_ms(self.blocked_s)}"
        return f"{_ms(self.held_s)} ms ({parts}; preempted {_ms(self.preempted_s)})"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f}"


class LoopWatch:
    """`with LoopWatch(loop) as watch: ...; watch.longest`; the longest stretch inside the block."""

    def __init__(self, loop: LoopThread) -> None:
        self._loop = loop
        self.longest = Stretch()
        # When the longest stretch began and ended, by `time.perf_counter`.
        self.when_s = (0.0, 0.0)
        self._watching: asyncio.Task[None] | None = None

    @property
    def longest_s(self) -> float:
        return self.longest.held_s

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
        with _ThreadTimes() as times, suppress(asyncio.CancelledError):
            started = times.read()
            while True:
                await yield_to_loop()
                ended = times.read()
                stretch = Stretch(*(after - before for after, before in zip(ended, started, strict=True)))
                if stretch.held_s > self.longest.held_s:
                    self.longest, self.when_s = stretch, (started.wall_s, ended.wall_s)
                started = ended


class _ThreadTimes:
    """The clocks of the thread that enters it."""

    def __enter__(self) -> _ThreadTimes:
        self._thread, self._collected_s, self._collection_started = threading.get_ident(), 0.0, 0.0
        try:
            self._scheduler_file = os.open(SCHEDULER_FILE, os.O_RDONLY)
        except FileNotFoundError:  # not Linux: what was blocked cannot be told from what was preempted
            self._scheduler_file = -1
        gc.callbacks.append(self._on_collection)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._on_collection)
        if self._scheduler_file >= 0:
            os.close(self._scheduler_file)

    def read(self) -> Stretch:
        """The times so far, all of the same moment."""
        preempted_ns = -1
        while True:
            wall_s, ran_s, collected_s = time.perf_counter(), time.thread_time(), self._collected_s
            if self._scheduler_file < 0:
                return Stretch(ran_s, ran_s, collected_s)
            # Preempted just now, the thread would seem to have been blocked for that time.
            before_ns, preempted_ns = preempted_ns, self._preempted_ns()
            if preempted_ns == before_ns:
                return Stretch(wall_s, ran_s, collected_s, preempted_ns / 1e9)

    def _preempted_ns(self) -> int:
        return int(os.pread(self._scheduler_file, 100, 0).split()[1])

    def _on_collection(self, phase: str, _: object) -> None:
        if threading.get_ident() == self._thread:
            if phase == "start":
                self._collection_started = time.thread_time()
            else:
                self._collected_s += time.thread_time() - self._collection_started
