"""How far open transactions hold back read_committed consumers, on `/metrics`: read off the partitions' logs.

Only partitions that have had a transaction have a sample of their own, and only so many of these.
"""

from __future__ import annotations

from itertools import islice

from flowstone.broker.loop.time_slices import yield_to_loop
from flowstone.broker.metrics.exposition import Exposition
from flowstone.replication.served_partitions import Partitions

PARTITION_LABELS_MAX = 1000
# How many partitions are looked at before others get their turn.
SLICE_PARTITIONS = 200


async def write_stable_offsets(page: Exposition, partitions: Partitions) -> None:
    open_transactions, lags = 0, dict[str, float]()
    left = iter([*partitions])  # some may go while others have their turn
    while slice_ := list(islice(left, SLICE_PARTITIONS)):
        for partition in slice_:
            undecided = partition.log.producers.undecided
            if undecided is None:
                continue
            if partition.is_leader:
                open_transactions += len(undecided)
            if len(lags) < PARTITION_LABELS_MAX:
                topic, index = partition.topic_partition
                lag = partition.high_watermark.offset - partition.last_stable_offset
                lags[f'{{topic="{topic}",partition="{index}"}}'] = lag
        await yield_to_loop()
    page.gauge(
        "flowstone_partition_open_transactions",
        "Open transactions, once for each led partition that they have written to.",
        open_transactions,
    )
    page.gauge(
        "flowstone_partition_last_stable_offset_lag",
        "Records that read_committed consumers do not see yet because of open transactions.",
        lags,
    )
