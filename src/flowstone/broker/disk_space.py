"""How much room the log directories have: it is looked at all the time, warned of in time, and never used up.

Below a floor of free space (`log.dir.free.min.bytes`) clients' new records are refused with KAFKA_STORAGE_ERROR, and
all else goes on: reads, offsets of groups, deletions, retention, compaction. So what is left is for what makes room.
Once there is some again, a little more than the floor so that it does not go back and forth, records are taken again.

The nearer the floor is, the oftener the disk is looked at. Producers may be faster than that: once they have appended
what lay between the floor and what was free at the last look, nothing more is taken before another.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
import sys
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from flowstone.broker.append_rates import AppendRates
from flowstone.broker.disk_trend import FreeSpaceTrend
from flowstone.broker.turns import others_turn
from flowstone.config import GIB, MIB
from flowstone.errors import ApiError, ErrorCode
from flowstone.log.partition_log import PartitionLog
from flowstone.ports.clock import Timer

if TYPE_CHECKING:
    from flowstone.broker.context import Services
    from flowstone.log.directory_logs import DirectoryLogs

logger = logging.getLogger(__name__)

# The floor where none is set: this part of the file system, and no more than this.
FLOOR_FRACTION = 0.01
FLOOR_BYTES_MAX = 512 * MIB
# So much more than the floor must be free until records are taken again.
RELIEF_FRACTION = 0.25
# What all producers together may write at most: as long as this takes to the floor, nobody need look.
FASTEST_BYTES_PER_S = 2 * GIB
LOOK_INTERVAL_MAX_S = 5.0
LOOK_INTERVAL_MIN_S = 0.1
RATES_INTERVAL_S = 10.0
# How many partitions' rates are looked at before others get their turn: about half a millisecond.
SLICE_PARTITIONS = 200


class Room:
    """Which log directories take no new records for lack of it, and what whoever sends some is told.

    What clients append is counted for all directories together: that is one sum per batch, and whoever reaches the
    next look a little early only looks.
    """

    def __init__(self) -> None:
        self.refusals: dict[str, str] = {}
        self.appended_bytes = 0
        self.look_at_bytes = sys.maxsize  # appended: until then no directory can have reached its floor
        self.look: Callable[[], None] = lambda: None

    def take(self, log: PartitionLog, size_bytes: int) -> None:
        """Counts what is about to be appended. ApiError if clients' records are refused where the log is."""
        self.appended_bytes += size_bytes
        if self.appended_bytes > self.look_at_bytes:
            self.look()
        if self.refusals:
            told = self.refusals.get(posixpath.dirname(log.path))
            if told is not None:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, told)


class DirectorySpace:
    """One log directory's room, as of the last look."""

    def __init__(self, directory: DirectoryLogs) -> None:
        self.directory = directory
        self.usable_bytes = self.total_bytes = self.floor_bytes = 0
        self.is_refusing = False
        self.is_low = False  # it is full soon, at the present rate
        self.looked_at_bytes = 0  # appended when it was looked at
        self.trend = FreeSpaceTrend()
        self.timer: Timer | None = None

    @property
    def seconds_left(self) -> float:
        """Until records are refused at the present rate; infinite while it does not fill up."""
        return self.trend.seconds_until(self.floor_bytes)


class DiskSpace:
    def __init__(self, services: Services) -> None:
        self._services, self._clock, self._room = services, services.clock, services.room
        self._floor_bytes = services.config.log_dir_free_min_bytes
        self._warning_s = services.config.log_dir_full_warning_ms / 1000
        self.directories = [DirectorySpace(each) for each in services.logs.directories]
        self._rates = AppendRates()
        self._rates_timer: Timer | None = None
        self._sampling: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Looks at once: a broker that starts on a full disk refuses from the first record on."""
        self._room.look = self._look_now
        self._look_now()
        for space in self.directories:
            self._schedule(space)
        self._schedule_rates()

    def stop(self) -> None:
        for space in self.directories:
            if space.timer is not None:
                space.timer.cancel()
        if self._rates_timer is not None:
            self._rates_timer.cancel()
        if self._sampling is not None:
            self._sampling.cancel()

    def growth_bytes_per_s(self, log: PartitionLog) -> float:
        return self._rates.of(log, self._clock.monotonic())

    # Room

    def _schedule(self, space: DirectorySpace) -> None:
        if space.directory.fault is None:
            until_floor_s = (space.usable_bytes - space.floor_bytes) / FASTEST_BYTES_PER_S
            delay_s = min(max(until_floor_s, LOOK_INTERVAL_MIN_S), LOOK_INTERVAL_MAX_S)
            space.timer = self._clock.call_later(delay_s, partial(self._look, space))

    def _look_now(self) -> None:
        """For an append, which would wait for the disk itself if that hangs."""
        for space in self.directories:
            if space.directory.fault is None:
                space.looked_at_bytes = self._room.appended_bytes
                try:
                    self._note(space, *space.directory.free_bytes())
                except OSError as error:
                    space.directory.doubt(error)

    def _look(self, space: DirectorySpace) -> None:
        """In a thread: a disk that hangs must not hang the loop."""
        looking = asyncio.wrap_future(space.directory.housekeeping.submit(space.directory.free_bytes))
        looking.add_done_callback(partial(self._looked, space, self._room.appended_bytes))

    def _looked(self, space: DirectorySpace, appended_bytes: int, looking: asyncio.Future[tuple[int, int]]) -> None:
        if looking.cancelled():
            return
        error = looking.exception()
        if isinstance(error, OSError):
            space.directory.doubt(error)
        else:
            space.looked_at_bytes = appended_bytes
            self._note(space, *looking.result())
        self._schedule(space)

    def _note(self, space: DirectorySpace, usable_bytes: int, total_bytes: int) -> None:
        space.usable_bytes, space.total_bytes = usable_bytes, total_bytes
        space.floor_bytes = self._floor_of(total_bytes)
        space.trend.note(self._clock.monotonic(), usable_bytes)
        self._refuse_or_take(space)
        self._room.look_at_bytes = min(
            (
                each.looked_at_bytes + each.usable_bytes - each.floor_bytes
                for each in self.directories
                if not each.is_refusing and each.directory.fault is None
            ),
            default=sys.maxsize,
        )
        self._warn(space)

    def _floor_of(self, total_bytes: int) -> int:
        if self._floor_bytes >= 0:
            return self._floor_bytes
        return min(int(total_bytes * FLOOR_FRACTION), FLOOR_BYTES_MAX)

    def _refuse_or_take(self, space: DirectorySpace) -> None:
        path, usable_bytes, floor_bytes = space.directory.path, space.usable_bytes, space.floor_bytes
        if usable_bytes < floor_bytes:
            told = f"{path} has {usable_bytes} bytes of room left; below {floor_bytes} it takes no new records"
            self._room.refusals[path] = told
            if not space.is_refusing:
                logger.error("%s: delete topics, or lower retention.ms or retention.bytes of some", told)
                self._tell_cluster(path, is_below=True)
            space.is_refusing = True
        elif space.is_refusing and usable_bytes >= floor_bytes * (1 + RELIEF_FRACTION):
            del self._room.refusals[path]
            space.is_refusing = False
            logger.warning("%s has %d bytes of room again and takes new records", path, usable_bytes)
            self._tell_cluster(path, is_below=False)

    def _tell_cluster(self, path: str, *, is_below: bool) -> None:
        """In a cluster other brokers lead while this one has no room."""
        if self._services.cluster is not None:
            self._services.cluster.full_disks.floor_passed(path, is_below=is_below)

    def _warn(self, space: DirectorySpace) -> None:
        left_s = space.seconds_left
        is_low = left_s < self._warning_s
        if is_low and not space.is_low:
            logger.warning(
                "%s takes no more records in %.0f minutes at the present rate: %d bytes of room, %.0f less a second",
                space.directory.path,
                left_s / 60,
                space.usable_bytes,
                space.trend.filling_bytes_per_s,
            )
        elif space.is_low and not is_low:
            logger.info("%s does not fill up soon any more", space.directory.path)
        space.is_low = is_low

    # Rates of partitions, for whoever asks

    def _schedule_rates(self) -> None:
        self._rates_timer = self._clock.call_later(RATES_INTERVAL_S, self._begin_rates)

    def _begin_rates(self) -> None:
        self._sampling = asyncio.ensure_future(self._sample_rates())

    async def _sample_rates(self) -> None:
        left = iter([partition.log for partition in self._services.partitions])
        while slice_ := list(islice(left, SLICE_PARTITIONS)):
            for log in slice_:
                if log.exists:
                    self.growth_bytes_per_s(log)
            await others_turn()
        self._rates.forget_unasked()
        self._schedule_rates()
