"""The start of a share partition that was never read, chosen by the group's `share.auto.offset.reset`."""

from __future__ import annotations

from functools import partial

from flowstone.broker.loop.cold_reads import read_when_cached
from flowstone.broker.loop.workers import Workers
from flowstone.config import GroupSettings
from flowstone.config.group import reset_duration_ms
from flowstone.log.partition.timestamps import first_record_at
from flowstone.replication.partition import Partition


async def chosen_start(settings: GroupSettings, partition: Partition, workers: Workers, now_ms: int) -> int:
    """Return the offset of the first record for the group. Raises ApiError if the log cannot be read."""
    reset, log = settings.share_auto_offset_reset, partition.log
    latest: int = partition.high_watermark.offset
    if reset == "earliest":
        return log.log_start_offset
    duration_ms = reset_duration_ms(reset)
    if duration_ms is None:
        return latest
    target_ms = max(now_ms - duration_ms, 0)
    batch = await read_when_cached(workers, partition, partial(log.find_timestamp, target_ms))
    if batch is None:
        return latest
    start = log.log_start_offset
    found = await workers.read(lambda: first_record_at(batch.read(), target_ms, start))
    return latest if found is None else min(found[0], latest)
