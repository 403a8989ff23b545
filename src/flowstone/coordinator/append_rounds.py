"""Schedules the appends of a coordinator's shards: at once under low load, in rounds under high load.

Most of the cost of a commit is fixed: a write, a flush, a thread switch and a response each. A round serves all shards
that have records by then, one right after the other. Kafka does the same with `group.coordinator.append.linger.ms`, but
per partition, and every commit waits.

Here a single client that commits repeatedly and waits for each response is never delayed: an append waits only if
several shards appended in the previous interval. Time is the event loop's own, so that a virtual clock does not delay
clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

ROUND_INTERVAL_S = 0.030
# After so many different shards in one interval, the next one is a round: some seven hundred commits a second.
CROWD_SHARDS = 18


class AppendRounds:
    def __init__(self) -> None:
        # The current interval: its end, the shards that appended in it, and those that wait for its end.
        self._ends_s = 0.0
        self._came: set[object] = set()
        self._waiting: list[Callable[[], None]] = []
        self._is_crowded = False

    def join(self, shard: object, append: Callable[[], None]) -> None:
        """Call `append` now, or at the end of this interval."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        if now_s >= self._ends_s and not self._waiting:
            self._begin(now_s, follows=now_s < self._ends_s + ROUND_INTERVAL_S)
        self._came.add(shard)
        if not self._is_crowded:
            append()
            return
        if not self._waiting:
            loop.call_at(self._ends_s, self._run)
        self._waiting.append(append)

    def _begin(self, now_s: float, *, follows: bool) -> None:
        """Begin an interval; `follows` says whether it follows the last one without a pause."""
        self._is_crowded = follows and len(self._came) >= CROWD_SHARDS
        self._ends_s = now_s + ROUND_INTERVAL_S
        self._came.clear()

    def _run(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._begin(asyncio.get_running_loop().time(), follows=True)
        for append in waiting:
            append()
