"""When a coordinator's shards append what can wait a moment: at once while few do, in rounds while many do.

Most of what a commit costs is not its own work but to be woken for it: a write, a flush, a thread and an answer each.
A round serves all shards that have something by then, one right after the other. Kafka does the same with
`group.coordinator.append.linger.ms`, but per partition, and everybody waits.

Here one who commits again and again, and waits for each answer, never does: only where several shards appended in the
interval before is there something to share. Time is the event loop's own: moving a virtual clock is no reason to keep a
client waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

ROUND_INTERVAL_S = 0.030
# So many different shards within one interval make the next one a round: some seven hundred commits a second.
CROWD_SHARDS = 18


class AppendRounds:
    def __init__(self) -> None:
        # This interval's: when it ends, who came in it, who waits for its end; whether anybody has to.
        self._ends_s = 0.0
        self._came: set[object] = set()
        self._waiting: list[Callable[[], None]] = []
        self._is_crowded = False

    def join(self, shard: object, append: Callable[[], None]) -> None:
        """Has `append` called: now or at the end of this interval."""
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
        """Begins an interval; whether it follows the last one, without a pause, that counts."""
        self._is_crowded = follows and len(self._came) >= CROWD_SHARDS
        self._ends_s = now_s + ROUND_INTERVAL_S
        self._came.clear()

    def _run(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._begin(asyncio.get_running_loop().time(), follows=True)
        for append in waiting:
            append()
