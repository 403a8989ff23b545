"""`Task`: one record of a queue while this process holds it.

A task is settled once: accepted, released or rejected. Settling returns at once; the broker is told with the next
request, and a connection that breaks before that means another delivery. Methods may be called from any thread.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from enum import IntEnum
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from flowstone.queues.consumer import Consumer

logger = logging.getLogger(__name__)


class Outcome(IntEnum):
    """The outcomes of a record; the values are those of the protocol."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class AlreadySettled(RuntimeError):
    """The task was accepted, released or rejected before."""


class Task:
    """One record of a queue, locked for this process until it is settled.

    `with task:` accepts it at the end of the body, and releases it if the body raises: it is then delivered again, to
    any worker, until the group's delivery count limit.
    """

    __slots__ = (
        "_consumer",
        "_is_settled",
        "attempt",
        "headers",
        "is_started",
        "key",
        "offset",
        "partition",
        "timestamp_ms",
        "topic",
        "value",
    )

    def __init__(
        self,
        consumer: Consumer,
        topic: str,
        partition: int,
        offset: int,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        attempt: int,
    ) -> None:
        self._consumer = consumer
        self._is_settled = False
        self.is_started = False  # whether its body runs
        self.topic, self.partition, self.offset = topic, partition, offset
        self.timestamp_ms, self.key, self.value, self.headers = timestamp_ms, key, value, headers
        self.attempt = attempt  # 1 for the first delivery

    def __repr__(self) -> str:
        return f"Task({self.topic}-{self.partition} offset {self.offset}, attempt {self.attempt})"

    def accept(self) -> None:
        """Finish the task: it is not delivered again."""
        self._settle(Outcome.ACCEPT)

    def release(self) -> None:
        """Return the task, for another attempt by any worker."""
        self._settle(Outcome.RELEASE)

    def retry(self, after: float = 0.0) -> None:
        """Return the task for another attempt, after `after` seconds at the earliest.

        The protocol has no delayed release. This process therefore keeps the record locked until then, and renews the
        lock; if it ends before, the record is delivered as soon as its lock expires.
        """
        if after < 0:
            raise ValueError(f"a task cannot be retried in the past: after is {after}")
        if after == 0:
            self.release()
            return
        self._mark_settled()
        self._consumer.delay(self, after)

    def reject(self, reason: str = "") -> None:
        """Give the task up: it is archived, or goes to the group's dead letter topic if it has one.

        `reason` is logged here; the protocol has no field for it.
        """
        logger.warning("%r is rejected%s", self, f": {reason}" if reason else "")
        self._settle(Outcome.REJECT)

    def extend(self) -> None:
        """Renew the lock now, and restart `hold_max_s`, for a body that takes longer than that."""
        if self._is_settled:
            raise AlreadySettled(f"{self!r} is settled: its lock cannot be renewed")
        self._consumer.extend(self)

    def __enter__(self) -> Self:
        self.is_started = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Accept or release; return whether the exception ends here: see `raise_errors` of the queue."""
        self.is_started = False
        if error is None:
            if not self._is_settled:
                self.accept()
            return False
        if not self._is_settled:
            self.release()
        if self._consumer.raise_errors or not isinstance(error, Exception):
            return False
        logger.error("%r failed and is released for another attempt", self, exc_info=(type(error), error, trace))
        return True

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return self.__exit__(kind, error, trace)

    def _settle(self, outcome: Outcome) -> None:
        self._mark_settled()
        self._consumer.settle(self, outcome)

    def _mark_settled(self) -> None:
        if self._is_settled:
            raise AlreadySettled(f"{self!r} is settled already")
        self._is_settled = True
