"""The writer of a run's state: a thread that keeps the lease alive and writes progress and errors.

The pipeline never waits for it. Values wait in a buffer by key, where a newer value replaces an older one, so a broker
that is away for long costs no more memory than a short absence. The thread writes the buffer at most once per
`WRITE_INTERVAL_S`, renews the lease every `HEARTBEAT_S`, and follows the topic to see whether another run took over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from threading import Condition, Thread

from flowstone.client import ClientError
from flowstone.errors import ApiError
from flowstone.pipeline.state.topic import Entry, StateTopic

LOGGER = logging.getLogger("flowstone.pipeline")
WRITE_INTERVAL_S = 1.0
HEARTBEAT_S = 3.0
# One attempt; the next begins with what has come meanwhile.
ATTEMPT_DEADLINE_S = 5.0
PENDING_KEYS_MAX = 10_000


class StateWriter:
    """`heartbeat` returns the lease's record; `follow` receives what others and this writer have written."""

    def __init__(
        self,
        bootstrap: str,
        heartbeat: Callable[[], tuple[str, bytes]],
        follow: Callable[[Sequence[Entry]], None],
    ) -> None:
        self._bootstrap, self._heartbeat, self._follow = bootstrap, heartbeat, follow
        self._changed = Condition()
        self._pending: dict[str, bytes | None] = {}
        self._dropped = 0
        self._is_closing = False
        self._is_writing = False
        self._is_away = False
        self._thread = Thread(target=self._run, name="flowstone-pipeline-state", daemon=True)
        self._thread.start()

    def put(self, key: str, value: bytes | None) -> None:
        """Schedule a write of the value. Beyond PENDING_KEYS_MAX keys the oldest one is dropped."""
        with self._changed:
            self._pending.pop(key, None)
            self._pending[key] = value
            if len(self._pending) > PENDING_KEYS_MAX:
                del self._pending[next(iter(self._pending))]
                self._dropped += 1
            self._changed.notify_all()

    def close(self, timeout_s: float) -> bool:
        """Write what is pending and end the thread; return whether everything was written within the time."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        with self._changed:
            return not self._thread.is_alive() and not self._pending

    def _run(self) -> None:
        with StateTopic(self._bootstrap, deadline_s=ATTEMPT_DEADLINE_S) as topic:
            beaten_s = written_s = time.monotonic()
            while True:
                due_s = beaten_s + HEARTBEAT_S
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closing or self._pending, due_s - time.monotonic())
                    if not self._is_closing and self._pending:
                        self._changed.wait_for(
                            lambda: self._is_closing, written_s + WRITE_INTERVAL_S - time.monotonic()
                        )
                    is_last = self._is_closing
                    records = dict(self._pending)
                    self._pending.clear()
                if not is_last and time.monotonic() >= due_s:
                    key, value = self._heartbeat()
                    records[key] = value
                    beaten_s = time.monotonic()
                written = not records or self._write(topic, records)
                written_s = time.monotonic()
                if is_last:
                    return
                if written:
                    self._read(topic)

    def _write(self, topic: StateTopic, records: dict[str, bytes | None]) -> bool:
        """Return whether the records were written; if not, they are pending again unless newer ones are."""
        try:
            topic.append(list(records.items()))
        except (ClientError, ApiError, OSError) as error:
            with self._changed:
                self._pending = {**records, **self._pending}
            self._report(error)
            return False
        if self._is_away:
            LOGGER.warning("flowstone: the pipeline's state is written again")
            self._is_away = False
        return True

    def _read(self, topic: StateTopic) -> None:
        try:
            self._follow(topic.read())
        except (ClientError, ApiError, OSError) as error:
            self._report(error)

    def _report(self, error: Exception) -> None:
        if not self._is_away:
            LOGGER.warning("flowstone: the pipeline continues, but its state cannot be written at present: %s", error)
            self._is_away = True
