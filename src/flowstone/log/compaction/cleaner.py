"""Runs compaction: picks the most urgent log, has it compacted, and swaps its segments.

Owns when a log is compacted and what happens when that fails. `plan` decides what is due, another process does the work
(`cleaner_process`), and `segment_swap` replaces the files. Runs on the event loop and only swaps files there.

The order of writes makes this safe: the recovery point on disk is above everything that is rewritten, so that no start
takes a hole for an unfinished write; a group is swapped before the next is begun; a log's first dirty offset moves when
all groups are swapped. A damaged log is left as it is until the next start, and the other logs are still compacted.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import pairwise

from flowstone.config import BrokerConfig, TopicConfig
from flowstone.errors import ApiError, StorageFault
from flowstone.log.compaction.cleaner_process import Compactor
from flowstone.log.compaction.cleaner_stats import CleanerStats
from flowstone.log.compaction.plan import NOTHING, CompactionPlan, SealedFacts, is_lag_over, plan_compaction
from flowstone.log.lifecycle.housekeeping import Housekeeping
from flowstone.log.lifecycle.steady_clock import SteadyClock
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.segments.compaction_job import CompactionError, CompactionJob, SourceSegment
from flowstone.log.segments.index_pair import newest_timestamp
from flowstone.log.segments.partition_directory import NO_DESCRIPTORS, NO_SPACE
from flowstone.log.segments.segment_swap import remove_cleaned
from flowstone.ports.clock import Timer
from flowstone.types import TopicPartition

logger = logging.getLogger(__name__)

# Transient causes, after which compaction is tried again: no disk space, no descriptors, a worker that was killed.
PASSING = (*NO_SPACE, *NO_DESCRIPTORS, errno.ECHILD)


class Cleaner:
    def __init__(
        self,
        clock: SteadyClock,
        config: BrokerConfig,
        housekeeping: Housekeeping,
        logs: Mapping[TopicPartition, PartitionLog],
        high_watermark_of: Callable[[PartitionLog], int],
        compactor: Compactor,
        on_fault: Callable[[StorageFault], None],
    ) -> None:
        """Create the cleaner of one directory. `logs` is the manager's own dictionary, which changes."""
        self._clock, self._config, self._housekeeping = clock, config, housekeeping
        self._logs, self._high_watermark_of = logs, high_watermark_of
        self._compactor, self._on_fault = compactor, on_fault
        self._unfit: dict[PartitionLog, str] = {}  # logs that cannot be compacted, with the reason
        self._is_retrying = False  # by a transient cause, which is logged once
        self.stats = CleanerStats()
        self._timer: Timer | None = None
        self.task: asyncio.Task[None] | None = None
        if config.log_cleaner_enable:
            self._schedule()

    def configure(self, config: BrokerConfig) -> None:
        """Apply other settings: the interval from the next check on, the rest from the next log on."""
        self._config = config

    @property
    def unfit(self) -> Mapping[PartitionLog, str]:
        """Return the logs that are left as they are because they cannot be compacted, each with the reason."""
        return self._unfit

    def stop(self) -> None:
        """Stop compaction; the next start finishes or undoes an interrupted swap."""
        if self._timer is not None:
            self._timer.cancel()
        if self.task is not None:
            self.task.cancel()
        self._compactor.stop()

    def _schedule(self) -> None:
        self._timer = self._clock.call_later(max(1, self._config.log_cleaner_backoff_ms) / 1000, self._start)

    def _start(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self.clean_all())
        self.task.add_done_callback(lambda task: None if task.cancelled() else self._schedule())

    async def clean_all(self) -> None:
        """Compact every log that is due, the most urgent first."""
        stuck: set[PartitionLog] = set()  # logs that are not tried again in this round
        while (due := await self._most_urgent(stuck)) is not None:
            plan, log = due
            if not await self._clean(log, plan):
                stuck.add(log)

    async def _most_urgent(self, stuck: set[PartitionLog]) -> tuple[CompactionPlan, PartitionLog] | None:
        best: tuple[CompactionPlan, PartitionLog] | None = None
        dirty_ratio_max = 0.0
        for log in [*self._logs.values()]:
            plan = await self._plan(log) if log not in stuck else NOTHING
            dirty_ratio_max = max(dirty_ratio_max, plan.dirty_ratio)
            if plan.is_due and (best is None or _urgency(plan) > _urgency(best[0])):
                best = plan, log
        self.stats.last_look_ms, self.stats.dirty_ratio_max = self._clock.time_ms(), dirty_ratio_max
        return best

    async def _plan(self, log: PartitionLog) -> CompactionPlan:
        if "compact" not in log.config.cleanup_policy or log in self._unfit or not log.exists:
            return NOTHING
        now_ms = self._clock.time_ms()
        active = log.segments.active
        try:
            if active.size_bytes and is_lag_over([active.first_timestamp], log.config, now_ms):
                self._housekeeping.roll(log)
            if len(log.segments) == 1:
                return NOTHING
            if log.recovery_point < log.segments.active.base_offset:
                self._housekeeping.flush(log)  # its segments may be compacted in a later round
            facts = await self._housekeeping.when_cached(partial(sealed_facts, log))
        except (StorageFault, OSError) as error:
            self._give_up(log, str(error))
            return NOTHING
        stable_offset = min(log.last_stable_offset(self._high_watermark_of(log)), log.recovery_point)
        return plan_compaction(facts, log.config, log.first_dirty_offset, stable_offset, now_ms)

    async def _clean(self, log: PartitionLog, plan: CompactionPlan) -> bool:
        """Compact one log; return whether its first dirty offset moved."""
        started_s, before_bytes = self._clock.monotonic(), log.size_bytes
        config = self._config
        job = job_of(
            log,
            plan,
            log.config,
            self._clock.time_ms(),
            latest_ms=self._clock.latest_ms(),
            map_bytes_max=config.log_cleaner_dedupe_buffer_size,
            bytes_per_s=config.log_cleaner_io_max_bytes_per_second,
        )
        try:
            await self._housekeeping.checkpoint()
            mapped_end = await self._compactor.begin(job)
            self.stats.mapped(job, mapped_end)
            numbers = [number for number, group in enumerate(job.groups) if group[0].base_offset < mapped_end]
            for number in numbers:
                if not await self._clean_group(log, job, number):
                    mapped_end = plan.first_dirty_offset
                    break
            await self._compactor.end()
        except (ApiError, CompactionError, OSError) as error:
            await self._failed(log, error)
            return False
        except StorageFault as fault:
            self.stats.failed(self._clock.time_ms())
            self._on_fault(fault)
            return False
        if mapped_end <= plan.first_dirty_offset:
            return False  # an open transaction begins there, or the log has lost what was compacted
        self._is_retrying = False
        log.first_dirty_offset = mapped_end
        self._housekeeping.save_offsets()
        took_s = self._clock.monotonic() - started_s
        self.stats.run_seconds.observe(took_s)
        logger.info(
            "%s: compacted offsets %d to %d in %.1f s; %d bytes became %d",
            log.topic_partition,
            plan.first_dirty_offset,
            mapped_end - 1,
            took_s,
            before_bytes,
            log.size_bytes,
        )
        return True

    async def _clean_group(self, log: PartitionLog, job: CompactionJob, number: int) -> bool:
        """Compact one group of segments; return whether the log still had them."""
        bases = {source.base_offset for source in job.groups[number]}
        old = [segment for segment in log.segments if segment.base_offset in bases]
        if len(old) != len(bases):
            return False
        cleaned = await self._compactor.clean(number)
        self.stats.cleaned(job.groups[number], cleaned)
        if self._logs.get(log.topic_partition) is not log:
            return False
        paths = await log.replace_segments(old, cleaned, self._housekeeping.in_thread)
        self._housekeeping.remove_later(log, paths)
        return bool(paths)

    async def _failed(self, log: PartitionLog, error: Exception) -> None:
        """Record a failure. A permanent one is not tried again before the next start."""
        if self._logs.get(log.topic_partition) is not log:
            return  # its topic was deleted, so a failure is expected
        self.stats.failed(self._clock.time_ms())
        with suppress(OSError):
            await self._housekeeping.in_thread(partial(remove_cleaned, log.files, log.path))
        is_passing = isinstance(error, ApiError) or (isinstance(error, OSError) and error.errno in PASSING)
        if not is_passing:
            self._give_up(log, str(error))
        elif not self._is_retrying:
            self._is_retrying = True
            logger.warning("%s cannot be compacted for now: %s", log.topic_partition, error)

    def _give_up(self, log: PartitionLog, reason: str) -> None:
        self._unfit[log] = reason
        logger.error("%s cannot be compacted and is left as it is: %s", log.topic_partition, reason)


def job_of(
    log: PartitionLog,
    plan: CompactionPlan,
    config: TopicConfig,
    now_ms: int,
    *,
    latest_ms: int,
    map_bytes_max: int,
    bytes_per_s: float,
) -> CompactionJob:
    """Return what a compactor is asked to do to carry out a plan.

    `latest_ms` is the latest possible current time: tombstones are kept for `delete.retention.ms` from then on.
    """
    return CompactionJob(
        directory=log.path,
        groups=tuple(tuple(SourceSegment(*facts[:3]) for facts in group) for group in plan.groups),
        first_dirty_offset=plan.first_dirty_offset,
        end_offset=plan.end_offset,
        kept_offsets=log.producers.last_offsets(),
        kept_markers=log.producers.known_by_markers(),
        now_ms=now_ms,
        delete_horizon_ms=latest_ms + config.delete_retention_ms,
        index_interval_bytes=config.index_interval_bytes,
        map_bytes_max=map_bytes_max,
        bytes_per_s=bytes_per_s,
    )


def _urgency(plan: CompactionPlan) -> tuple[bool, float]:
    return plan.is_overdue, plan.dirty_ratio


def sealed_facts(log: PartitionLog) -> list[SealedFacts]:
    """Return what the plan needs to know of each sealed segment. Raises NotCached."""
    segments = log.segments
    facts = []
    for segment, following in pairwise(segments):
        newest_ms = segment.latest_timestamp()
        facts.append(
            SealedFacts(
                segment.base_offset,
                following.base_offset,
                segment.size_bytes,
                newest_timestamp(segment.header_at(0)),
                newest_ms if newest_ms >= 0 else segment.created_ms,
            )
        )
    return facts
