"""Compaction on a schedule: in a thread beside the writes of a process, one at a time for each table.

The first compaction of a table comes `compact_every_s` after the process's first write to it. A compaction that fails,
because another writer changed the table or for any other reason, is reported in the log and tried again next time. One
that the end of the process cuts off has changed nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Lock, Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowstone.pipeline.model import TableSink

_log = logging.getLogger(__name__)


class Schedule:
    """Schedule of compactions: when each table was compacted last, and which one is being compacted."""

    def __init__(self, compact: Callable[[TableSink], object], clock: Callable[[], float] = time.monotonic) -> None:
        self._compact, self._clock = compact, clock
        self._guard = Lock()
        self._due: dict[str, float] = {}
        self._running: dict[str, Thread] = {}

    def written(self, target: TableSink) -> Thread | None:
        """Begin a compaction if one is due after a write. Return its thread."""
        if not target.compact_every_s:
            return None
        table, now = f"{target.kind} {target.path}", self._clock()
        with self._guard:
            due = self._due.setdefault(table, now + target.compact_every_s)
            running = self._running.get(table)
            if now < due or (running is not None and running.is_alive()):
                return None
            self._due[table] = now + target.compact_every_s
            thread = Thread(target=self._run, args=(target,), name=f"compaction of {table}", daemon=True)
            self._running[table] = thread
        thread.start()
        return thread

    def _run(self, target: TableSink) -> None:
        try:
            self._compact(target)
        except Exception:
            _log.warning("the compaction of %s failed and is tried again later", target.path, exc_info=True)
