"""`flowstone up` with one thing wrong: it dies at an exact call of the file port, its disk is slow, or it has a bug.

    python sabotaged_up.py SABOTAGE[:ARGUMENT…] <arguments of flowstone up>

The sabotage is done to the running program's own functions; nothing in the broker knows of it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from flowstone.cli.up.command import run_up
from flowstone.errors import ErrorCode
from flowstone.log.lifecycle import log_recovery
from flowstone.log.partition import partition_log
from flowstone.log.partition.derived_state import DerivedProducers
from flowstone.log.partition.log_cutting import cut_log
from flowstone.log.partition.partition_log import FlushTask, PartitionLog
from flowstone.log.partition.producers.producer_state import ProducerStates
from flowstone.log.partition.truncation_plan import cut_at
from flowstone.log.segments import batch_scan
from flowstone.ports.system_files import SystemFile, SystemFiles
from flowstone.replication.partition import Partition
from flowstone.replication.waiters import add_waiter
from flowstone.types import Bytes

LATE_WRITE_S = 0.3
STALL_POLL_S = 0.005


def die_at(operation: str, number: str, moment: str) -> None:
    """SIGKILL at the `number`-th call of the operation: before it, after it, or with half of a write done."""
    owner: Any = SystemFile if hasattr(SystemFile, operation) and operation != "size" else SystemFiles
    original: Callable[..., Any] = getattr(owner, operation)
    calls = itertools.count(1)
    last = int(number)

    def wrapped(self: Any, *arguments: Any, **more: Any) -> Any:
        if next(calls) != last:
            return original(self, *arguments, **more)
        if moment == "half":
            position, buffers = arguments
            data = b"".join(buffers)
            original(self, position, [data[: len(data) // 2]])
        elif moment == "after":
            original(self, *arguments, **more)
        os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()  # the signal is for the whole process: this thread must not go on
        raise AssertionError

    _replace(owner, operation, wrapped)


def skip_the_flush(_stall: str) -> None:
    """Says that a log's bytes are on disk without having asked the disk."""
    sync = SystemFile.sync

    def skip(self: SystemFile) -> None:
        if not _is_log(self.path):
            sync(self)

    _replace(SystemFile, "sync", skip)


def _is_log(path: str) -> bool:
    """A partition's log; the metadata log is another matter."""
    return path.endswith(".log") and "orders-" in path


def slow_the_disk(sync_s: str) -> None:
    """No bug, but some time between a write and its flush, so that what happens in between is seen."""
    delay_s = float(sync_s)
    sync = SystemFile.sync

    def slow(self: SystemFile) -> None:
        if _is_log(self.path) and threading.current_thread() is not threading.main_thread():
            time.sleep(delay_s)  # in flush threads: recovery is not the point
        sync(self)

    _replace(SystemFile, "sync", slow)


def stall_the_disk(while_there: str) -> None:
    """No bug, but no flush goes on while there is a file of that name, so that the power can fail before it."""
    sync = SystemFile.sync

    def stalled(self: SystemFile) -> None:
        while _is_log(self.path) and os.path.exists(while_there):
            time.sleep(STALL_POLL_S)
        sync(self)

    _replace(SystemFile, "sync", stalled)


def acknowledge_before_the_flush(stall: str) -> None:
    """acks=all is answered after the write."""
    stall_the_disk(stall)
    _replace(Partition, "when_committed", lambda self, offset, callback, leader_epoch=None: callback(ErrorCode.NONE))


def show_before_the_flush(stall: str) -> None:
    """Consumers see what is only in the page cache; producers wait for the disk all the same."""
    stall_the_disk(stall)
    append = Partition.append

    def shown(self: Partition, records: Bytes, acks: int, **options: Any) -> partition_log.Appended:
        appended = append(self, records, acks, **options)
        self.local.high_watermark = self.log.end
        return appended

    _replace(Partition, "append", shown)
    _replace(Partition, "when_committed", _when_flushed)
    flushed = Partition.flushed

    def tell(self: Partition) -> None:
        flushed(self)
        waiting = self.local.uncommitted
        while waiting and waiting[0][0] <= self.log.flushed_end.offset:
            waiting.popleft()[1](ErrorCode.NONE)

    _replace(Partition, "flushed", tell)


def _when_flushed(
    self: Partition, offset: int, callback: Callable[[ErrorCode], None], leader_epoch: int | None = None
) -> None:
    if offset <= self.log.flushed_end.offset:
        callback(ErrorCode.NONE)
    else:
        self.local.uncommitted = add_waiter(self.local.uncommitted, offset, callback)


def ignore_a_failed_flush(stall: str) -> None:
    """A flush that fails counts as done, as after a retry that falsely succeeds."""
    stall_the_disk(stall)
    run = FlushTask.run

    def careless(self: FlushTask) -> None:
        try:
            run(self)
        except OSError:
            return

    _replace(FlushTask, "run", careless)


def write_later() -> None:
    """Batches are acknowledged from memory and reach the file a moment later."""
    write = SystemFile.write

    def later(self: SystemFile, position: int, buffers: Sequence[Bytes]) -> int:
        if not _is_log(self.path):
            return write(self, position, buffers)
        copies = [bytes(each) for each in buffers]
        asyncio.get_running_loop().call_later(LATE_WRITE_S, write, self, position, copies)
        return sum(map(len, copies))

    _replace(SystemFile, "write", later)


def truncate_below_the_recovery_point() -> None:
    """Recovery takes any damage for an unfinished write."""
    _replace(log_recovery._Recovery, "_refuse_below_durable_end", lambda self, offset, damage: None)
    _replace(log_recovery._Recovery, "_refuse_before_good_batches", lambda self, *arguments: None)
    finish = log_recovery._Recovery._finish

    def forgiving(self: Any, segments: Any, end_offset: int) -> None:
        self._stored = self._stored._replace(recovery_point=min(self._stored.recovery_point, end_offset), durable_end=0)
        finish(self, segments, end_offset)

    _replace(log_recovery._Recovery, "_finish", forgiving)


def ignore_checksums_in_recovery() -> None:
    """Recovery looks at headers only."""
    scan = batch_scan.scan

    def trusting(*arguments: Any, **_verify: Any) -> Iterator[batch_scan.ScannedBatch]:
        return scan(*arguments)

    _replace(log_recovery, "scan", trusting)


def recover_one_batch_less() -> None:
    """Recovery takes the last whole batch for an unfinished one."""
    recover = log_recovery._Recovery.run

    def short(self: Any) -> None:
        recover(self)
        log: PartitionLog = self._log
        if log.end.offset > log.log_start_offset:
            cut = cut_at(log, log.end.offset - 1, self._now_ms)
            log.durability.lower(cut.untouched_end)
            cut_log(log, cut)
            log.flushed_end = log.end

    _replace(log_recovery._Recovery, "run", short)


def forget_producers() -> None:
    """Recovery does not know which batches it has already: retries are appended again."""
    _replace(log_recovery, "load_producers", lambda *arguments: DerivedProducers(ProducerStates(), 0, [], False))
    _replace(ProducerStates, "check", lambda self, *arguments: None)


def _replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
    assert hasattr(owner, name)
    setattr(owner, name, function)
    if (owner, name) == (SystemFile, "sync"):
        SystemFiles.has_descriptors = False  # native threads would not call it


PLANTED_BUGS = (
    skip_the_flush,
    acknowledge_before_the_flush,
    show_before_the_flush,
    ignore_a_failed_flush,
    write_later,
    truncate_below_the_recovery_point,
    ignore_checksums_in_recovery,
    recover_one_batch_less,
    forget_producers,
)
SABOTAGES: dict[str, Callable[..., None]] = {each.__name__: each for each in (die_at, slow_the_disk, *PLANTED_BUGS)}


if __name__ == "__main__":
    name, *sabotage_arguments = sys.argv[1].split(":")
    SABOTAGES[name](*sabotage_arguments)
    sys.exit(run_up(sys.argv[2:]))
