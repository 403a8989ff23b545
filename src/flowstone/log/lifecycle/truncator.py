"""Truncates logs in an order that is safe at every moment.

1. The worker thread finds what must be dropped and prepares what will be left.
2. The recovery point is lowered to where the cut lies, and checkpointed: a start that finds less than a recovery point
   promises would take it for damage. What producers did beyond the cut is forgotten, and that is durable: beside other
   records at the same offsets, a start would believe it.
3. Names and sizes change, on the event loop and in one turn of it, the newest files first: what a crash leaves is a
   prefix, whose end a start checks.
4. A log that begins earlier than before has its new start checkpointed before records come: a start would take them for
   deleted ones.
5. A flush makes that durable. Until then a power loss may bring back what was dropped: for a replica no harm, as its
   leader will tell it once more to drop it.

Other work continues while a cut waits for the disk. Before step 3 the caller's `is_due` is called again, and a log
whose end has moved is planned again. Compaction, which changes names too, is locked out all the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from flowstone.errors import StorageFault
from flowstone.log.lifecycle.flusher import Flusher
from flowstone.log.lifecycle.housekeeping import Housekeeping
from flowstone.log.partition.log_cutting import cut_log
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.partition.truncation_plan import Cut, cut_all, find_cut
from flowstone.ports.clock import Clock

IsDue = Callable[[], bool]


class Truncator:
    def __init__(self, clock: Clock, housekeeping: Housekeeping, flusher: Flusher) -> None:
        self._clock, self._housekeeping, self._flusher = clock, housekeeping, flusher

    async def truncate_to(self, log: PartitionLog, offset: int, is_due: IsDue) -> None:
        """Drop the batch with `offset` and all after it. Raises ApiError, and changes nothing, if the disk is full."""
        await self._run(log, partial(self._work_out, log, offset), is_due)

    async def reset_to(self, log: PartitionLog, offset: int, is_due: IsDue) -> None:
        """Drop the whole log, which continues at `offset`. Raises ApiError as `truncate_to` does."""

        async def work_out() -> Cut:
            return cut_all(log, offset)

        await self._run(log, work_out, is_due)

    async def _run(self, log: PartitionLog, work_out: Callable[[], Awaitable[Cut | None]], is_due: IsDue) -> None:
        async with log.names_lock:
            while is_due():
                cut = await work_out()
                if cut is None or await self._cut(log, cut, is_due):
                    break

    async def _cut(self, log: PartitionLog, cut: Cut, is_due: IsDue) -> bool:
        """Cut the log; return False if the log's end moved meanwhile, so that the cut must be planned again."""
        try:
            with log.durability.held(cut.untouched_end):
                await self._housekeeping.checkpoint()
                await self._forget_producers(log, cut.end.offset)
        finally:
            self._flusher.request(log)  # what remains of the cut segment counted as not durable
        if not is_due() or cut.log_end != log.end:
            return False
        before = log.log_start_offset
        try:
            cut_log(log, cut)
        except OSError as error:
            self._flusher.forget(log)
            raise StorageFault(f"{log.topic_partition} was left partly truncated: {error}") from error
        self._flusher.request(log)
        if log.log_start_offset < before:
            await self._housekeeping.checkpoint()
        return True

    async def _forget_producers(self, log: PartitionLog, end_offset: int) -> None:
        try:
            if log.directory.remove_snapshots_after(end_offset):
                await self._housekeeping.in_thread(partial(log.files.sync_directory, log.path))
        except OSError as error:
            raise StorageFault(f"{log.topic_partition} cannot be truncated: {error}") from error

    async def _work_out(self, log: PartitionLog, offset: int) -> Cut | None:
        """Return the planned cut, or None if the log already ends there."""
        while log.log_start_offset <= offset < log.end.offset:
            found = await self._housekeeping.when_cached(partial(find_cut, log, offset, self._clock.time_ms()))
            try:
                return await asyncio.wrap_future(self._housekeeping.submit(found.work_out))
            except OSError as error:
                if found.log_end == log.end:
                    raise StorageFault(f"{log.topic_partition} cannot be truncated: {error}") from error
        return None
