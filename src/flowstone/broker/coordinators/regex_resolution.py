"""Determines the topics that match the regular expressions of consumer groups, in time slices on the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.cluster.metadata import Metadata
from flowstone.coordinator.groups.consumer.regexes import ResolveRegexes, compile_regex
from flowstone.ports.clock import Clock

logger = logging.getLogger(__name__)

# A group id, and the names of the matching topics by regular expression; None if they could not be determined.
Resolved = Callable[[str, dict[str, tuple[str, ...]] | None], None]


class RegexResolution:
    def __init__(self, metadata: Metadata, clock: Clock) -> None:
        self._metadata, self._clock = metadata, clock
        self._running: set[asyncio.Task[None]] = set()

    def begin(self, task: ResolveRegexes, resolved: Resolved) -> None:
        """Start a resolution; `resolved` is called with its result."""
        running = asyncio.ensure_future(self._resolve(task, resolved))
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    def close(self) -> None:
        for running in tuple(self._running):
            running.cancel()

    async def _resolve(self, task: ResolveRegexes, resolved: Resolved) -> None:
        try:
            found = await self._matching(task)
        except Exception:  # a later heartbeat of the group tries again
            logger.exception(
                "the topics that match the subscriptions of group %s could not be determined", task.group_id
            )
            resolved(task.group_id, None)
        else:
            resolved(task.group_id, found)

    async def _matching(self, task: ResolveRegexes) -> dict[str, tuple[str, ...]]:
        names, may_see = tuple(self._metadata.image.topics), task.may_see
        slices = TimeSlices(self._clock.monotonic)
        found = {}
        for regex in task.regexes:
            matches = compile_regex(regex).fullmatch
            matching = [name async for name in slices.over(names) if matches(name)]
            found[regex] = tuple(name for name in matching if may_see is None or may_see(name))
        return found
