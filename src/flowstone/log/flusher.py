"""Group commit: logs are made durable in threads, and the loop hears of it.

Owns the flush threads and the order of flushes. One flush at a time per log; whatever is appended while it runs is
covered by the next. Completion comes on the event loop: the log's recovery point moves, then `on_flushed(log)`.

A flush that fails fails the log directory for good (S6): the kernel may have dropped the dirty pages and report
success the next time, so there is no retry. `on_fault` is called once; nothing is ever reported as flushed after it.

When many logs are dirty at once and the log directory is a file system of its own, one syncfs serves them all.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue

from flowstone.config import LONG_MAX
from flowstone.counters import Histogram
from flowstone.errors import StorageFault
from flowstone.log.partition_directory import NO_DESCRIPTORS, FlushTask
from flowstone.log.partition_log import PartitionLog
from flowstone.ports.clock import Clock, Timer
from flowstone.ports.files import Files

# Where there is no descriptor to open a directory with, nothing has failed yet: it is tried again so often.
DESCRIPTOR_TRIES_MAX = 100
DESCRIPTOR_WAIT_S = 0.1
CROWD_LOGS = 64  # from so many flushes under way on, further ones share a syncfs
FLUSH_SECONDS_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class _Job:
    """What one turn of a flush thread makes durable: one log, or a crowd of them."""

    __slots__ = ("error", "finished", "is_crowd", "started", "tasks")

    def __init__(self, tasks: dict[PartitionLog, FlushTask], started: float, *, is_crowd: bool) -> None:
        self.tasks = tasks
        self.started = started
        self.is_crowd = is_crowd
        self.finished = False
        self.error: OSError | None = None

    def run(self, files: Files, directory: str) -> None:
        """May be called again after it found no descriptor: what was synced before is synced once more."""
        self.error = None
        try:
            if not self.is_crowd:
                for task in self.tasks.values():
                    task.run()
            else:
                for task in self.tasks.values():
                    task.replace_files()
                files.sync_filesystem(directory)
        except OSError as error:
            self.error = error


class Flusher:
    def __init__(
        self,
        files: Files,
        directory: str,
        clock: Clock,
        thread_count: int,
        *,
        on_flushed: Callable[[PartitionLog], None],
        on_fault: Callable[[PartitionLog, StorageFault], None],
    ) -> None:
        """Belongs to the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._files = files
        self._directory = directory
        self._clock = clock
        self._on_flushed = on_flushed
        self._on_fault = on_fault
        self.fault: StorageFault | None = None
        self.flushed_bytes = 0  # since whoever counts last set it back
        self.flush_seconds = Histogram(FLUSH_SECONDS_BOUNDS)  # from a flush's beginning until the loop hears of its end
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._jobs: set[_Job] = set()
        self._finishing = threading.Condition()
        self._running: set[PartitionLog] = set()
        self._again: dict[PartitionLog, None] = {}
        self._due: dict[PartitionLog, None] = {}  # begun at the end of this turn of the loop
        self._crowd: dict[PartitionLog, None] | None = None  # waits for the syncfs under way; None: there is none
        self._crowds_allowed = files.is_own_filesystem(directory)
        self._unrequested_records: dict[PartitionLog, int] = {}
        self._timers: dict[PartitionLog, Timer] = {}
        self._threads = [
            threading.Thread(target=self._work, name=f"flush-{number}", daemon=True) for number in range(thread_count)
        ]
        for thread in self._threads:
            thread.start()

    def request(self, log: PartitionLog) -> None:
        """Makes everything appended to the log so far, and in the rest of this turn of the loop, durable."""
        if self.fault is not None:
            return
        if log in self._running:
            self._again[log] = None
            return
        # Requests that came together are appended one after the other: one flush should cover them all.
        if not self._due:
            self._loop.call_soon(self._start_due)
        self._due[log] = None

    def _start_due(self) -> None:
        due, self._due = self._due, {}
        if self.fault is None:
            for log in due:
                self._begin(log)

    def _begin(self, log: PartitionLog) -> None:
        if log in self._running:
            self._again[log] = None
        elif self._crowd is not None and log in self._crowd:
            pass
        elif self._crowds_allowed and len(self._running) >= CROWD_LOGS:
            if self._crowd is None:
                self._start_crowd([log])
            else:
                self._crowd[log] = None
        else:
            self._start([log], is_crowd=False)

    def appended(self, log: PartitionLog, record_count: int) -> None:
        """Asks for a flush where flush.messages and flush.ms say that one is due, now or later."""
        config = log.config
        count = self._unrequested_records.get(log, 0) + record_count
        if count >= config.flush_messages:
            self._unrequested_records.pop(log, None)
            self._cancel_timer(log)
            self.request(log)
            return
        self._unrequested_records[log] = count
        if config.flush_ms < LONG_MAX and log not in self._timers:
            self._timers[log] = self._clock.call_later(config.flush_ms / 1000, lambda: self._timer_fired(log))

    def forget(self, log: PartitionLog) -> None:
        """The log goes: nothing more is asked for it. Waits for the flush under way, which uses the log's names."""
        self._again.pop(log, None)
        self._due.pop(log, None)
        if self._crowd is not None:
            self._crowd.pop(log, None)
        self._unrequested_records.pop(log, None)
        self._cancel_timer(log)
        for job in [job for job in self._jobs if log in job.tasks]:
            with self._finishing:
                self._finishing.wait_for(lambda job=job: job.finished)  # type: ignore[misc]

    def stop(self) -> None:
        """Waits for the flushes under way; what they made durable is told to the logs, but no longer to anyone else."""
        self._start_due()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        for timer in self._timers.values():
            timer.cancel()
        for job in self._jobs:
            assert job.finished
            if job.error is not None:
                self._fail(job)
        for job in self._jobs:
            if self.fault is None:
                for log, task in job.tasks.items():
                    log.flushed(task)
        self._jobs.clear()

    def _timer_fired(self, log: PartitionLog) -> None:
        self._timers.pop(log, None)
        self._unrequested_records.pop(log, None)
        self.request(log)

    def _cancel_timer(self, log: PartitionLog) -> None:
        if (timer := self._timers.pop(log, None)) is not None:
            timer.cancel()

    def _start_crowd(self, logs: list[PartitionLog]) -> None:
        self._crowd = {} if self._start(logs, is_crowd=True) else None

    def _start(self, logs: list[PartitionLog], *, is_crowd: bool) -> bool:
        """Whether there was anything to flush."""
        tasks = {log: task for log in logs if (task := log.take_dirty()) is not None}
        if not tasks:
            return False
        job = _Job(tasks, self._clock.monotonic(), is_crowd=is_crowd)
        self._running.update(tasks)
        self._jobs.add(job)
        self._queue.put(job)
        return True

    def _work(self) -> None:
        """A flush thread: system calls, and word to the loop."""
        while (job := self._queue.get()) is not None:
            self._run(job)
            with self._finishing:
                job.finished = True
                self._finishing.notify_all()
            try:
                self._loop.call_soon_threadsafe(self._finished, job)
            except RuntimeError:  # the loop is gone; `stop` looks at the job itself
                return

    def _run(self, job: _Job) -> None:
        for _ in range(DESCRIPTOR_TRIES_MAX):
            job.run(self._files, self._directory)
            if job.error is None or job.error.errno not in NO_DESCRIPTORS:
                return
            with self._finishing:
                self._finishing.wait(DESCRIPTOR_WAIT_S)

    def _finished(self, job: _Job) -> None:
        if self.fault is not None or job not in self._jobs:
            return
        self._jobs.discard(job)
        if job.error is not None:
            self._fail(job)
            return
        self.flush_seconds.observe(self._clock.monotonic() - job.started)
        for log, task in job.tasks.items():
            self._running.discard(log)
            self.flushed_bytes += task.appended_bytes
            log.flushed(task)
        if job.is_crowd:
            self._start_crowd(list(self._crowd or ()))
        for log in job.tasks:
            if log in self._again:
                del self._again[log]
                self._begin(log)
        for log in job.tasks:
            self._on_flushed(log)

    def _fail(self, job: _Job) -> None:
        if self.fault is None:
            log = next(iter(job.tasks))
            self.fault = StorageFault(f"{self._directory}: a flush of {log.topic_partition} failed: {job.error}")
            self._on_fault(log, self.fault)
