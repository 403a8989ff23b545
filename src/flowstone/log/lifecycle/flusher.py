"""Group commit: makes logs durable in threads and reports completion to the event loop.

Owns the flush threads and the order of flushes. One flush at a time per log; whatever is appended while it runs is
covered by the next. Completion comes on the event loop: the log's recovery point moves, then `on_flushed(log)`.

Native threads, if the kernel library is built, sync single files of a log, because a Python thread would compete with
the loop for the GIL. Python threads do everything else (new names, files to replace, a syncfs).

A flush that fails fails the log directory for good (S6): the kernel may have dropped the dirty pages and report
success the next time, so there is no retry. `on_fault` is called once; nothing is ever reported as flushed after it.

When many logs are dirty at once and the log directory is a file system of its own, one syncfs serves them all.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from flowstone.config import LONG_MAX, MIB
from flowstone.counters import Histogram
from flowstone.errors import StorageFault
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.segments.partition_directory import NO_DESCRIPTORS, FlushTask
from flowstone.ports.clock import Clock, Timer
from flowstone.ports.files import File, Files

if TYPE_CHECKING:
    from flowstone.ports.file_syncs import FileSyncs

# How long a flush waits before it tries again when no descriptor is free to open a directory: nothing has failed yet.
DESCRIPTOR_TRIES_MAX = 100
DESCRIPTOR_WAIT_S = 0.1
GROUP_LOGS_MAX = 16  # the number of files that one thread syncs together
SYNCFS_LOGS = 64  # the number of waiting logs that share a syncfs
# Recovery after a crash reads what was flushed since the last checkpoint: about this much at most.
CHECKPOINT_FLUSHED_BYTES = 256 * MIB
FLUSH_SECONDS_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


@dataclass(slots=True, eq=False)
class _Job:
    """The work of one turn of a flush thread: one log, a few logs of one file each, or many with one syncfs."""

    tasks: dict[PartitionLog, FlushTask]
    started: float
    is_whole_filesystem: bool = False
    in_thread: Future[None] | None = None  # uses names, and must be waited for before they go
    finished: bool = False
    error: OSError | None = None

    def run(self, files: Files, directory: str) -> None:
        """Run the job. May be called again after no descriptor was free: files synced before are synced again."""
        self.error = None
        try:
            if not self.is_whole_filesystem:
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
        on_durable: Callable[[Iterable[PartitionLog]], None] = lambda logs: None,
        on_checkpoint_due: Callable[[PartitionLog], None] = lambda log: None,
    ) -> None:
        """Create a flusher on the running event loop.

        `on_durable` is told of a moved recovery point first, and `on_checkpoint_due` last, if it should be stored.
        """
        self._loop = asyncio.get_running_loop()
        self._files = files
        self._directory = directory
        self._clock = clock
        self._on_flushed = on_flushed
        self._on_fault = on_fault
        self._on_durable = on_durable
        self._on_checkpoint_due = on_checkpoint_due
        self.fault: StorageFault | None = None
        self.flushed_bytes = 0  # since a reader of this counter last reset it
        # from a flush's beginning until the loop is told of its end
        self.flush_seconds = Histogram(FLUSH_SECONDS_BOUNDS)
        self._jobs: set[_Job] = set()
        self._descriptors_wait = threading.Event()  # never set: a thread sleeps on it
        self._running: set[PartitionLog] = set()
        self._due: OrderedDict[PartitionLog, None] = OrderedDict()  # waiting for a flush, and none is running
        self._waiting: dict[PartitionLog, list[asyncio.Future[None]]] = {}  # for the end of a running flush
        self._again: set[PartitionLog] = set()  # being flushed, and appended to since
        self._start_is_scheduled = False
        self._is_own_filesystem = files.is_own_filesystem(directory)
        self._unrequested_records: dict[PartitionLog, int] = {}
        self._timers: dict[PartitionLog, Timer] = {}
        self._thread_count = thread_count
        self._threads = files.resizable_threads(thread_count, "flush")
        self._is_stopped = False
        self._syncs = self._new_syncs()

    def _new_syncs(self) -> FileSyncs[_Job] | None:
        if not self._files.has_descriptors:
            return None
        try:
            from flowstone.ports.file_syncs import FileSyncs
        except ImportError:  # no native kernel: the flush threads do everything
            return None
        return FileSyncs(self._loop, self._thread_count, self._finished)

    @property
    def thread_count(self) -> int:
        return self._thread_count

    def resize(self, thread_count: int) -> None:
        """Change the number of threads: more begin with the logs that wait, fewer finish the flushes that run first."""
        if self._is_stopped or thread_count == self._thread_count:
            return
        self._thread_count = thread_count
        self._threads.resize(thread_count)
        if self._syncs is not None:
            self._syncs.resize(thread_count)
        self._start_due()

    def request(self, log: PartitionLog) -> None:
        """Request a flush that makes everything appended so far, and until the flush begins, durable."""
        if self.fault is not None or log.is_forgotten:
            return
        if log in self._running:
            self._again.add(log)
            return
        self._due[log] = None
        # Requests that arrived together are appended one after the other: one flush should cover them all.
        if not self._start_is_scheduled and len(self._jobs) < self._thread_count:
            self._start_is_scheduled = True
            self._loop.call_soon(self._start_due)

    def _start_due(self) -> None:
        """Start flushes of waiting logs while threads are free. One flush covers all appends to its log so far."""
        self._start_is_scheduled = False
        while self._due and len(self._jobs) < self._thread_count and self.fault is None and not self._is_stopped:
            if self._is_own_filesystem and len(self._due) >= SYNCFS_LOGS:
                self._start_in_thread(self._take_due(len(self._due)), is_whole_filesystem=True)
                continue
            free_threads = self._thread_count - len(self._jobs)
            plain: dict[PartitionLog, FlushTask] = {}
            unsynced: list[File] = []
            for log, task in self._take_due(min(-(-len(self._due) // free_threads), GROUP_LOGS_MAX)).items():
                if self._syncs is not None and task.is_one_file:
                    plain[log] = task
                    unsynced += task.unsynced
                else:
                    self._start_in_thread({log: task}, is_whole_filesystem=False)
            if plain:
                assert self._syncs is not None
                self._syncs.submit(self._new_job(plain), unsynced)

    def _take_due(self, count: int) -> dict[PartitionLog, FlushTask]:
        tasks: dict[PartitionLog, FlushTask] = {}
        for _ in range(min(count, len(self._due))):
            log = self._due.popitem(last=False)[0]
            task = log.durability.take_dirty()
            if task is not None:
                tasks[log] = task
        return tasks

    def appended(self, log: PartitionLog, record_count: int) -> None:
        """Request a flush of the log, now or later, if flush.messages and flush.ms say that one is due."""
        config = log.config
        if log.end.segment_base_offset != log.flushed_end.segment_base_offset and not self._is_under_way(log):
            self.request(log)  # a segment was sealed: it is flushed once, whatever the settings say
        if config.flush_messages == LONG_MAX and config.flush_ms == LONG_MAX:
            return  # flush.ms is unlimited
        count = self._unrequested_records.get(log, 0) + record_count
        if count >= config.flush_messages:
            self._unrequested_records.pop(log, None)
            self._cancel_timer(log)
            self.request(log)
            return
        self._unrequested_records[log] = count
        if config.flush_ms < LONG_MAX and log not in self._timers:
            self._timers[log] = self._clock.call_later(config.flush_ms / 1000, lambda: self._timer_fired(log))

    def _is_under_way(self, log: PartitionLog) -> bool:
        return log in self._running or log in self._due

    async def released(self, log: PartitionLog) -> None:
        """Return once no flush of the log is running. Appends meanwhile may start another.

        Raises StorageFault if a flush has failed: whether the log is durable will never be known.
        """
        while log in self._running and self.fault is None:
            ended: asyncio.Future[None] = self._loop.create_future()
            self._waiting.setdefault(log, []).append(ended)
            await ended
        if self.fault is not None:
            raise self.fault

    async def flushed_once(self, log: PartitionLog) -> None:
        """Flush the log, and return when that has ended; at once if other logs come first. Raises as `released`."""
        self.request(log)
        self._start_due()
        await self.released(log)

    def forget(self, log: PartitionLog) -> None:
        """Stop flushing a log that is being deleted. Waits for a running flush that uses the log's names."""
        log.is_forgotten = True
        self._again.discard(log)
        self._due.pop(log, None)
        self._unrequested_records.pop(log, None)
        self._cancel_timer(log)
        for job in self._jobs:
            if log in job.tasks and job.in_thread is not None:
                job.in_thread.result()

    def stop(self) -> None:
        """Wait for running flushes and report their results to the logs only."""
        self._start_due()
        if self._syncs is not None:
            for job, error in self._syncs.stop():
                job.error, job.finished = error, True
        self._is_stopped = True
        self._threads.shutdown()
        for timer in self._timers.values():
            timer.cancel()
        for job in self._jobs:
            assert job.finished
            if job.error is not None:
                self._fail(job)
        for job in self._jobs:
            if self.fault is None:
                for log, task in job.tasks.items():
                    log.durability.flushed(task)
                self._on_durable(job.tasks)
        self._jobs.clear()

    def _timer_fired(self, log: PartitionLog) -> None:
        self._timers.pop(log, None)
        self._unrequested_records.pop(log, None)
        self.request(log)

    def _cancel_timer(self, log: PartitionLog) -> None:
        if (timer := self._timers.pop(log, None)) is not None:
            timer.cancel()

    def _new_job(self, tasks: dict[PartitionLog, FlushTask], *, is_whole_filesystem: bool = False) -> _Job:
        job = _Job(tasks, self._clock.monotonic(), is_whole_filesystem=is_whole_filesystem)
        self._running.update(tasks)
        self._jobs.add(job)
        return job

    def _start_in_thread(self, tasks: dict[PartitionLog, FlushTask], *, is_whole_filesystem: bool) -> None:
        if not tasks:
            return
        job = self._new_job(tasks, is_whole_filesystem=is_whole_filesystem)
        job.in_thread = self._threads.submit(self._run, job)
        job.in_thread.add_done_callback(partial(self._ran, job))

    def _run(self, job: _Job) -> None:
        """Run a job in a flush thread: system calls only."""
        for _ in range(DESCRIPTOR_TRIES_MAX):
            job.run(self._files, self._directory)
            if job.error is None or job.error.errno not in NO_DESCRIPTORS:
                break
            self._descriptors_wait.wait(DESCRIPTOR_WAIT_S)
        job.finished = True

    def _ran(self, job: _Job, _: Future[None]) -> None:
        with suppress(RuntimeError):  # the loop is gone; `stop` looks at the job itself
            self._loop.call_soon_threadsafe(self._finished, job, job.error)

    def _finished(self, job: _Job, error: OSError | None) -> None:
        job.error, job.finished = error, True
        if self.fault is not None or job not in self._jobs:
            return
        self._jobs.discard(job)
        job.in_thread = None  # breaks a reference cycle, which would keep files open until the next garbage collection
        if job.error is not None:
            self._fail(job)
            return
        self.flush_seconds.observe(self._clock.monotonic() - job.started)
        for log, task in job.tasks.items():
            self._running.discard(log)
            self.flushed_bytes += log.durability.flushed(task)
            if log in self._again:
                self._again.discard(log)
                self._due[log] = None
            self._tell_waiting(log)
        self._on_durable(job.tasks)
        if self._due:
            self._start_due()
        for log in job.tasks:
            self._on_flushed(log)
            if log.durability.is_checkpoint_due or self.flushed_bytes >= CHECKPOINT_FLUSHED_BYTES:
                self._on_checkpoint_due(log)

    def _tell_waiting(self, log: PartitionLog) -> None:
        for ended in self._waiting.pop(log, ()):
            if not ended.done():
                ended.set_result(None)

    def _fail(self, job: _Job) -> None:
        if self.fault is None:
            log = next(iter(job.tasks))
            self.fault = StorageFault(f"{self._directory}: a flush of {log.topic_partition} failed: {job.error}")
            for each in tuple(self._waiting):
                self._tell_waiting(each)
            self._on_fault(log, self.fault)
