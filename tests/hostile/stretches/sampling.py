"""Where a loop's thread is during a long stretch: its stacks, sampled by another thread.

Sampling takes the interpreter's lock from the loop, so it is only done if asked for: FLOWSTONE_HOSTILE_SAMPLES=1.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from types import FrameType

INTERVAL_S = 0.002
# Innermost functions of a stack.
DEPTH = 9
SHOWN = 5


class Sampling:
    """`with Sampling(thread_id) as sampling: ...; sampling.between(started_s, ended_s)`, by `time.perf_counter`."""

    def __init__(self, thread_id: int) -> None:
        self._thread_id = thread_id
        self._samples: list[tuple[float, str]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> Sampling:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def between(self, started_s: float, ended_s: float) -> list[str]:
        """The most frequent stacks of that time, each with the number of its samples."""
        counts = Counter(stack for at_s, stack in self._samples if started_s <= at_s <= ended_s)
        return [f"{count} samples: {stack}" for stack, count in counts.most_common(SHOWN)]

    def _sample(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            frame = sys._current_frames().get(self._thread_id)
            if frame is not None:
                self._samples.append((time.perf_counter(), _stack(frame)))


def _stack(frame: FrameType | None) -> str:
    calls: list[str] = []
    while frame is not None and len(calls) < DEPTH:
        file = frame.f_code.co_filename.rpartition("/")[2]
        calls.append(f"{file}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return " < ".join(calls)
