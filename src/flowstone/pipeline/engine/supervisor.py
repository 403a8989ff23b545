"""Supervises the queries of a run: restarts after failures with growing delays, and stops between micro-batches."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flowstone.errors import FlowstoneError
from flowstone.pipeline.engine.queries import Query
from flowstone.pipeline.engine.running import BatchReport, Start, start_query
from flowstone.pipeline.errors import ExpectationFailed, TryLater
from flowstone.pipeline.model import PipelineModel, Trigger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

RESTART_DELAY_MIN_S, RESTART_DELAY_MAX_S = 1.0, 60.0
# A query that has run for so long after a restart begins again with the shortest delay.
HEALTHY_AFTER_S = 600.0
RESTARTS_DEFAULT = 10
POLL_S = 0.05
TRACEBACK = "Traceback (most recent call last):"
OWN_ERROR = "flowstone: "  # before the sentence of an error of the Spark source or sink
# How long a clean stop waits for the micro-batch that is being written.
STOP_TIMEOUT_S = 60.0


class GaveUp(TryLater):
    """A query failed more often in a row than it may be restarted: starting the pipeline later may help."""


@dataclass
class _Running:
    query: Query
    handle: StreamingQuery | None = None  # None: it waits to be restarted, or has ended
    started_at: float = 0.0
    failures: int = 0
    restart_at: float | None = None


@dataclass
class Supervisor:
    """Runs all queries of a pipeline in one Spark session until they have ended, failed or are stopped."""

    spark: SparkSession
    model: PipelineModel
    trigger: Trigger
    queries: Sequence[Query]
    starts: Mapping[str, Start]  # by query
    restarts: int = RESTARTS_DEFAULT
    on_batch: Callable[[BatchReport], None] = lambda report: None
    on_failure: Callable[[str, str, float | None], None] = lambda query, message, restart_in_s: None
    stopping: threading.Event = field(default_factory=threading.Event)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._is_ending = False
        self._errors: dict[str, Exception] = {}  # what failed in micro-batches, by query

    def is_stopping(self) -> bool:
        return self._is_ending or self.stopping.is_set()

    def failed(self, query: str, error: Exception) -> None:
        self._errors[query] = error

    def finished(self, report: BatchReport) -> None:
        self.on_batch(report)

    def run(self) -> None:
        """Run until all queries have ended, or `stopping` is set.

        Raises GaveUp, ExpectationFailed, or PipelineError if Spark refuses a query.
        """
        running = [_Running(each) for each in self.queries]
        try:
            for each in running:
                self._start(each)
            while any(each.handle or each.restart_at is not None for each in running) and not self.is_stopping():
                for each in running:
                    self._look_after(each)
                self.stopping.wait(POLL_S)
        finally:
            self._stop_all(running)

    def _start(self, each: _Running) -> None:
        each.restart_at, each.started_at = None, self.clock()
        start = self.starts[each.query.name]
        each.handle = start_query(self.spark, self.model, each.query, start, self.trigger, self)

    def _look_after(self, each: _Running) -> None:
        if each.handle is not None and not each.handle.isActive:
            error, each.handle = each.handle.exception(), None
            if error is not None and not self.is_stopping():
                self._failed(each, self._errors.pop(each.query.name, error))
        elif each.restart_at is not None and self.clock() >= each.restart_at:
            self._start(each)

    def _failed(self, each: _Running, error: Exception) -> None:
        message = describe(error)
        if isinstance(error, ExpectationFailed):
            self.on_failure(each.query.name, message, None)
            raise error
        if self.clock() - each.started_at > HEALTHY_AFTER_S:
            each.failures = 0
        each.failures += 1
        if each.failures > self.restarts:
            self.on_failure(each.query.name, message, None)
            raise GaveUp(f"query {each.query.name} failed {each.failures} times in a row, the last time: {message}")
        delay = min(RESTART_DELAY_MIN_S * 2 ** (each.failures - 1), RESTART_DELAY_MAX_S)
        each.restart_at = self.clock() + delay
        self.on_failure(each.query.name, message, delay)

    def _stop_all(self, running: list[_Running]) -> None:
        """Stop the queries: each between two micro-batches if it gets there in time."""
        self._is_ending = True
        deadline = self.clock() + STOP_TIMEOUT_S
        for each in running:
            handle = each.handle
            if handle is None:
                continue
            while handle.isActive and handle.status["isTriggerActive"] and self.clock() < deadline:
                time.sleep(POLL_S)
            handle.stop()


def describe(error: BaseException) -> str:
    """Return a failure as one sentence: the pipeline's own error, or the one that Spark's message names."""
    if isinstance(error, FlowstoneError):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    own = [line.partition(OWN_ERROR)[2] for line in lines if OWN_ERROR in line]
    return (own or _raised_in_worker(str(error)) or lines or [type(error).__name__])[0]


def _raised_in_worker(message: str) -> list[str]:
    """Return the line with the exception that follows the last traceback of Python in Spark's message."""
    _before, found, after = message.rpartition(TRACEBACK)
    frames_end = (line.strip() for line in after.splitlines() if line.strip() and not line[0].isspace())
    return list(frames_end)[:1] if found else []
