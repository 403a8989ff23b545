"""Free space of the log directories: measured continuously, with early warnings and a floor that clients cannot pass.

Below the floor (`log.dir.free.min.bytes`) clients' new records are refused with KAFKA_STORAGE_ERROR, and everything
else goes on: reads, offsets of groups, deletions, retention, compaction. The last bytes are reserved for work that
frees space. Records are accepted again when the free space is somewhat above the floor, so that the state does not
flap.

The broker warns when its own logs will have filled the disk soon (`disk_forecast`) and, separately, when the free space
is low, whatever has filled the disk.

The nearer the floor, the more often the disk is measured. Producers may be faster than that: once they have appended as
many bytes as were free above the floor, no more are accepted before the next measurement.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
import sys
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from flowstone.broker.disks.append_rates import AppendRates
from flowstone.broker.disks.disk_forecast import LogGrowth, duration_text, size_text
from flowstone.broker.loop.time_slices import yield_to_loop
from flowstone.config import GIB, MIB
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.ports.clock import Timer

if TYPE_CHECKING:
    from flowstone.broker.requests.context import Services
    from flowstone.log.directories.log_set import DirectoryLogs

logger = logging.getLogger(__name__)

# The default floor: this part of the file system, and at most this many bytes.
FLOOR_FRACTION = 0.01
FLOOR_BYTES_MAX = 512 * MIB
# Records are accepted again when the free space exceeds the floor by this part of it.
RELIEF_FRACTION = 0.25
# A forecast warns again only after it has been better than the threshold by the same part for so long.
FORECAST_RELIEF_S = 600.0
# The most that all producers together can write: no measurement is due before this rate would reach the floor.
FASTEST_BYTES_PER_S = 2 * GIB
# Free space is low when so many floors, or so many bytes if that is less, are left above the floor.
LOW_FLOORS = 3
LOW_BYTES_MAX = 2 * GIB
MEASURE_INTERVAL_MAX_S = 5.0
MEASURE_INTERVAL_MIN_S = 0.1
RATES_INTERVAL_S = 10.0
# Partitions whose rates are sampled in one time slice: about half a millisecond.
SLICE_PARTITIONS = 200
# Segments whose sizes are added up in one time slice.
SLICE_SEGMENTS = 2000


class DirectorySpace:
    """The free space of one log directory when it was last measured."""

    def __init__(self, directory: DirectoryLogs) -> None:
        self.directory = directory
        self.usable_bytes = self.total_bytes = self.floor_bytes = 0
        self.is_refusing = False
        self.is_filling = False  # the forecast says that the logs will have filled the disk soon
        self.eased_at_s: float | None = None  # since when it has not, while `is_filling` is still set
        self.is_scarce = False  # the free space is low, whatever has filled the disk
        self.measured_at_bytes = 0  # appended in all when the space was last measured
        self.growth = LogGrowth()
        self.timer: Timer | None = None

    @property
    def seconds_left(self) -> float:
        """Return the seconds until records are refused at the logs' current growth, or infinity without a forecast."""
        return self.growth.seconds_until_taken(self.usable_bytes - self.floor_bytes)

    @property
    def is_low(self) -> bool:
        return self.is_filling or self.is_scarce

    @property
    def low_bytes(self) -> int:
        """Return the free space below which a warning is logged."""
        return self.floor_bytes + min(LOW_FLOORS * self.floor_bytes, LOW_BYTES_MAX)


class DiskSpace:
    def __init__(self, services: Services) -> None:
        self._services, self._clock, self._floor = services, services.clock, services.disk_floor
        self._floor_bytes = services.config.log_dir_free_min_bytes
        self._warning_s = services.config.log_dir_full_warning_ms / 1000
        self.directories = [DirectorySpace(each) for each in services.logs.directories]
        self._rates = AppendRates()
        self._is_stopped = False
        self._rates_timer: Timer | None = None
        self._sampling: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Measure at once: a broker that starts on a full disk refuses records from the first one on."""
        self._floor.measure = self._measure_now
        self._measure_now()
        for space in self.directories:
            self._schedule(space)
        self._schedule_rates()

    def stop(self) -> None:
        self._is_stopped = True  # a measurement under way in a thread schedules no other
        for space in self.directories:
            if space.timer is not None:
                space.timer.cancel()
        if self._rates_timer is not None:
            self._rates_timer.cancel()
        if self._sampling is not None:
            self._sampling.cancel()

    def growth_bytes_per_s(self, log: PartitionLog) -> float:
        return self._rates.of(log, self._clock.monotonic())

    # Measuring

    def _schedule(self, space: DirectorySpace) -> None:
        if space.directory.fault is None and not self._is_stopped:
            until_floor_s = (space.usable_bytes - space.floor_bytes) / FASTEST_BYTES_PER_S
            delay_s = min(max(until_floor_s, MEASURE_INTERVAL_MIN_S), MEASURE_INTERVAL_MAX_S)
            space.timer = self._clock.call_later(delay_s, partial(self._measure, space))

    def _measure_now(self) -> None:
        """Measure on the loop, for an append, which would block on a hanging disk itself."""
        for space in self.directories:
            if space.directory.fault is None:
                space.measured_at_bytes = self._floor.appended_bytes
                try:
                    self._note(space, *space.directory.free_bytes())
                except OSError as error:
                    space.directory.doubt(error)

    def _measure(self, space: DirectorySpace) -> None:
        """Measure in a thread: a disk that hangs must not block the loop."""
        measuring = asyncio.wrap_future(space.directory.housekeeping.submit(space.directory.free_bytes))
        measuring.add_done_callback(partial(self._measured, space, self._floor.appended_bytes))

    def _measured(self, space: DirectorySpace, appended_bytes: int, measuring: asyncio.Future[tuple[int, int]]) -> None:
        if measuring.cancelled():
            return
        error = measuring.exception()
        if isinstance(error, OSError):
            space.directory.doubt(error)
        else:
            space.measured_at_bytes = appended_bytes
            self._note(space, *measuring.result())
        self._schedule(space)

    def _note(self, space: DirectorySpace, usable_bytes: int, total_bytes: int) -> None:
        space.usable_bytes, space.total_bytes = usable_bytes, total_bytes
        space.floor_bytes = self._floor_of(total_bytes)
        self._refuse_or_take(space)
        self._floor.measure_at_bytes = min(
            (
                each.measured_at_bytes + each.usable_bytes - each.floor_bytes
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
            told = f"{path} has {usable_bytes} bytes left; below {floor_bytes} it accepts no new records"
            self._floor.refusals[path] = told
            if not space.is_refusing:
                logger.error("%s: delete topics, or lower retention.ms or retention.bytes of some", told)
                self._tell_cluster(path, is_below=True)
            space.is_refusing = True
        elif space.is_refusing and usable_bytes >= floor_bytes * (1 + RELIEF_FRACTION):
            del self._floor.refusals[path]
            space.is_refusing = False
            logger.warning("%s has %d bytes free again and accepts new records", path, usable_bytes)
            self._tell_cluster(path, is_below=False)

    def _tell_cluster(self, path: str, *, is_below: bool) -> None:
        """Report a log directory that passed the floor, so that other brokers of a cluster lead while it is full."""
        if self._services.cluster is not None:
            self._services.cluster.full_disks.floor_passed(path, is_below=is_below)

    def _warn(self, space: DirectorySpace) -> None:
        self._warn_of_growth(space)
        self._warn_of_scarcity(space)

    def _warn_of_growth(self, space: DirectorySpace) -> None:
        left_s, growth = space.seconds_left, space.growth
        if space.is_filling:
            self._end_forecast(space, left_s)
        elif left_s < self._warning_s:
            space.is_filling = True
            logger.warning(
                "%s will accept no more records in %s if its logs continue to grow: by %s in the last %s, with %s "
                "free; "
                "lower retention.ms or retention.bytes of topics, or add a disk",
                space.directory.path,
                duration_text(left_s),
                size_text(growth.grown_bytes),
                duration_text(growth.history_s),
                size_text(space.usable_bytes),
            )

    def _end_forecast(self, space: DirectorySpace, left_s: float) -> None:
        """End the warning once the forecast has been clearly better for a while: it varies from sample to sample."""
        if left_s < self._warning_s * (1 + RELIEF_FRACTION):
            space.eased_at_s = None
        elif space.eased_at_s is None:
            space.eased_at_s = self._clock.monotonic()
        elif self._clock.monotonic() - space.eased_at_s >= FORECAST_RELIEF_S:
            space.is_filling, space.eased_at_s = False, None
            logger.info("%s is no longer expected to fill up soon", space.directory.path)

    def _warn_of_scarcity(self, space: DirectorySpace) -> None:
        if space.is_scarce:
            space.is_scarce = space.usable_bytes < space.low_bytes * (1 + RELIEF_FRACTION)
        elif space.usable_bytes < space.low_bytes:
            space.is_scarce = True
            if not space.is_refusing:  # otherwise the refusal was logged already, as an error
                logger.warning(
                    "%s has only %s free of %s, and accepts no more records below %s; %s",
                    space.directory.path,
                    size_text(space.usable_bytes),
                    size_text(space.total_bytes),
                    size_text(space.floor_bytes),
                    _who_took(space.growth),
                )

    # Rates of partitions

    def _schedule_rates(self) -> None:
        self._rates_timer = self._clock.call_later(RATES_INTERVAL_S, self._begin_rates)

    def _begin_rates(self) -> None:
        self._sampling = asyncio.ensure_future(self._sample_rates())

    async def _sample_rates(self) -> None:
        """Sample the append rate of every partition, and add up the bytes that the logs of each directory take."""
        sizes = {space.directory.path: 0 for space in self.directories}
        logs = [partition.log for partition in self._services.partitions]
        seen_partitions = seen_segments = 0
        for log in logs:
            if log.exists:
                self.growth_bytes_per_s(log)
                path = posixpath.dirname(log.path)
                sizes[path] = sizes.get(path, 0) + log.size_bytes
                seen_segments += len(log.segments)
            seen_partitions += 1
            if seen_partitions >= SLICE_PARTITIONS or seen_segments >= SLICE_SEGMENTS:
                seen_partitions = seen_segments = 0
                await yield_to_loop()
        self._rates.forget_unasked()
        self._note_sizes(sizes)
        self._schedule_rates()

    def _note_sizes(self, sizes: Mapping[str, int]) -> None:
        for space in self.directories:
            if space.directory.fault is None:
                space.growth.note(self._clock.monotonic(), sizes[space.directory.path], space.usable_bytes)
                self._warn(space)


def _who_took(growth: LogGrowth) -> str:
    """Return how much the broker's logs and other programs have written to the disk, and what to do about it."""
    if not growth.is_known:
        return "delete topics, lower retention.ms or retention.bytes, or see what else is on the disk"
    taken = f"its logs took {size_text(growth.grown_bytes)}, other programs {size_text(growth.others_bytes)}"
    return f"in the last {duration_text(growth.history_s)} {taken}"
