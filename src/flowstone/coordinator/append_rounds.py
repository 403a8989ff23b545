"""When a coordinator's shards append what can wait a moment: at once while little happens, in rounds while much does.

Most of what a commit costs is not its own work but to be woken for it: a write, a flush, a thread and an answer each.
A round serves all shards that have something by then, one right after the other. Between two rounds lies at least
`ROUND_INTERVAL_S`; who comes after a pause does not wait at all. Kafka does the same with
`group.coordinator.append.linger.ms`, per partition and with everybody waiting.

Time is the event loop's own: moving a virtual clock is no reason to keep a client waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

ROUND_INTERVAL_S = 0.005


class AppendRounds:
    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []
        self._next_s = 0.0

    def join(self, append: Callable[[], None]) -> None:
        """Has `append` called: now if the last round was a while ago, else in the next one."""
        if not self._waiting:
            loop = asyncio.get_running_loop()
            if loop.time() >= self._next_s:
                self._next_s = loop.time() + ROUND_INTERVAL_S
                append()
                return
            loop.call_at(self._next_s, self._run)
        self._waiting.append(append)

    def _run(self) -> None:
        self._next_s = asyncio.get_running_loop().time() + ROUND_INTERVAL_S
        waiting, self._waiting = self._waiting, []
        for append in waiting:
            append()
