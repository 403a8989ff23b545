"""A run of a pipeline: its lease, its counters and errors on their way to the topic, and how it ends."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock

from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.state.lease import FileLock, Leases, successor
from flowstone.pipeline.state.records import (
    ERROR_CHARACTERS_MAX,
    ERRORS_MAX,
    PURPOSE_RUN,
    RUNS_MAX,
    ErrorRecord,
    Kind,
    Lease,
    Progress,
    RunRecord,
    encode,
    key_of,
)
from flowstone.pipeline.state.topic import Entry
from flowstone.pipeline.state.writer import StateWriter

RATE_WINDOW_S = 10.0
END_TIMEOUT_S = 10.0


@dataclass
class _Counts:
    """The counts of a query in this run so far."""

    batches: int = 0
    rows_in: int = 0
    letters: int = 0
    rows_out: dict[str, int] = field(default_factory=dict)
    expectations: dict[str, int] = field(default_factory=dict)
    recent: deque[tuple[float, int]] = field(default_factory=deque)  # when a batch ended, and its rows

    def add(self, rows_in: int, rows_out: Mapping[str, int], letters: int, expectations: Mapping[str, int]) -> None:
        self.batches += 1
        self.rows_in += rows_in
        self.letters += letters
        for counts, more in ((self.rows_out, rows_out), (self.expectations, expectations)):
            for name, count in more.items():
                counts[name] = counts.get(name, 0) + count

    def rate(self, now_s: float, rows_in: int, duration_ms: int) -> float:
        """Return the rows per second of the last RATE_WINDOW_S, to which a batch is added."""
        self.recent.append((now_s, rows_in))
        while self.recent[0][0] < now_s - RATE_WINDOW_S:
            self.recent.popleft()
        since_s = now_s - self.recent[0][0] if len(self.recent) > 1 else 0.0
        return sum(rows for _, rows in self.recent) / max(since_s, duration_ms / 1000, 0.001)


class Run:
    """A run that has the lease. Its methods return at once, and may be called by any thread."""

    def __init__(
        self,
        bootstrap: str,
        pipeline: str,
        lease: Lease,
        leases: Leases,
        record: RunRecord,
        errors_before: int,
        lock: FileLock | None,
    ) -> None:
        self._pipeline, self._lease, self._leases, self._lock = pipeline, lease, leases, lock
        self._record, self._error_count = record, errors_before
        self._counts: dict[str, _Counts] = {}
        self._guard = Lock()
        self._successor: Lease | None = None
        self._is_over = False
        self.on_lost: Callable[[PipelineError], None] | None = None
        self._writer = StateWriter(bootstrap, self._heartbeat, self._follow)

    @property
    def id(self) -> str:
        return self._record.run_id

    @property
    def number(self) -> int:
        return self._record.number

    def check(self) -> None:
        """Raise PipelineError if another run has taken over, because this one gave no sign of life for too long."""
        if self._successor is not None:
            raise self._lost(self._successor)

    def record_batch(
        self,
        query: str,
        batch_number: int,
        rows_in: int,
        rows_out: Mapping[str, int],
        letters: int,
        expectations: Mapping[str, int],
        duration_ms: int,
    ) -> None:
        """Add a micro-batch to a query's counters. `rows_out` is by sink; `expectations` counts failed rows."""
        with self._guard:
            counts = self._counts.setdefault(query, _Counts())
            counts.add(rows_in, rows_out, letters, expectations)
            progress = Progress(
                query=query,
                run_id=self.id,
                batch_number=batch_number,
                at_ms=_now_ms(),
                batches=counts.batches,
                rows_in=counts.rows_in,
                rows_out=dict(counts.rows_out),
                letters=counts.letters,
                expectations=dict(counts.expectations),
                duration_ms=duration_ms,
                rows_per_s=round(counts.rate(time.monotonic(), rows_in, duration_ms), 1),
            )
        self._put(Kind.PROGRESS, query, progress)

    def record_error(self, query: str, message: str, restart_in_s: float = -1.0) -> None:
        """Record a failure of a query, shortened to ERROR_CHARACTERS_MAX. -1: the query is not restarted."""
        with self._guard:
            number, self._error_count = self._error_count, self._error_count + 1
            if restart_in_s >= 0:
                self._record = replace(self._record, restarts=self._record.restarts + 1)
            record = self._record
        error = ErrorRecord(number, query, self.id, _now_ms(), shortened(message), restart_in_s)
        self._put(Kind.ERROR, str(number % ERRORS_MAX), error)
        self._put_run(record)

    def end(self, reason: str) -> bool:
        """End the run and give up the lease; return whether the broker has all of its state."""
        with self._guard:
            if self._is_over:
                return True
            self._is_over = True
            counts = self._counts.values()
            self._record = replace(
                self._record,
                ended_at_ms=_now_ms(),
                reason=shortened(reason),
                rows_in=sum(each.rows_in for each in counts),
                rows_out=sum(sum(each.rows_out.values()) for each in counts),
                letters=sum(each.letters for each in counts),
            )
        self._put_run(self._record)
        self._writer.put(self._lease_key, None)
        is_written = self._writer.close(END_TIMEOUT_S)
        if self._lock is not None:
            self._lock.release()
        return is_written

    @property
    def _lease_key(self) -> str:
        return key_of(self._pipeline, Kind.LEASE, self.id)

    def _heartbeat(self) -> tuple[str, bytes]:
        return self._lease_key, encode(self._lease)

    def _follow(self, entries: Sequence[Entry]) -> None:
        self._leases.apply(entries)
        if self._successor is None:
            self._successor = successor(self._leases, self._lease)
            if self._successor is not None and self.on_lost is not None:
                self.on_lost(self._lost(self._successor))

    def _lost(self, by: Lease) -> PipelineError:
        return PipelineError(
            f"pipeline {self._pipeline} was taken over by process {by.pid} on {by.host}, because this run had given "
            "no sign of life for too long; this run must end"
        )

    def _put_run(self, record: RunRecord) -> None:
        if self._lease.purpose == PURPOSE_RUN:
            self._put(Kind.RUN, str(record.number % RUNS_MAX), record)

    def _put(self, kind: Kind, id: str, record: Progress | ErrorRecord | RunRecord) -> None:
        self._writer.put(key_of(self._pipeline, kind, id), encode(record))


def shortened(text: str) -> str:
    """Return the text with its middle left out if it is long: the cause of a failure is often in the last lines."""
    if len(text) <= ERROR_CHARACTERS_MAX:
        return text
    half = ERROR_CHARACTERS_MAX // 2
    return f"{text[:half]}\n[...]\n{text[-half:]}"


def _now_ms() -> int:
    return int(time.time() * 1000)
