"""Computes the targets of large consumer groups, in time slices on the event loop, and has them stored in parts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from flowstone.broker.loop.time_slices import TimeSlices, run_in_slices
from flowstone.coordinator.groups.consumer.target import ComputeTargets, Target, parts_of, targets_computed
from flowstone.coordinator.groups.shard import GroupShard
from flowstone.coordinator.runtime import HostedShard
from flowstone.ports.clock import Clock

logger = logging.getLogger(__name__)


class TargetComputation:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._running: set[asyncio.Task[None]] = set()

    def begin(self, task: ComputeTargets, shard: HostedShard[GroupShard]) -> None:
        """Start a computation, whose result is stored in the shard."""
        running = asyncio.ensure_future(self._compute(task, shard))
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    def close(self) -> None:
        for running in tuple(self._running):
            running.cancel()

    async def _compute(self, task: ComputeTargets, shard: HostedShard[GroupShard]) -> None:
        slices = TimeSlices(self._clock.monotonic)
        try:
            targets = await run_in_slices(task.steps, slices)
        except Exception:  # a later heartbeat of the group tries again
            logger.exception("the partitions of group %s could not be assigned to its members", task.group_id)
            _store(shard, task, None)
            return
        parts = [*parts_of(targets)]
        for number, part in enumerate(parts, 1):
            _store(shard, task, part, is_last=number == len(parts))
            await slices.yield_if_due()


def _store(
    shard: HostedShard[GroupShard], task: ComputeTargets, part: Sequence[Target] | None, *, is_last: bool = True
) -> None:
    store = partial(targets_computed, task=task, part=part, is_last=is_last)
    shard.execute(lambda machine, now_ms: machine.task_done(now_ms, task.group_id, store))
