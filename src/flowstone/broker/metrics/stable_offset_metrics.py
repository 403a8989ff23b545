"""Metrics of how far open transactions delay read_committed consumers, read from the partitions' logs.

Only partitions that have had a transaction have samples, and at most `PARTITION_LABELS_MAX` of them: those that are
held back most.
"""

from __future__ import annotations

from heapq import nlargest
from itertools import islice

from flowstone.broker.loop.time_slices import yield_to_loop
from flowstone.broker.metrics.exposition import Exposition
from flowstone.replication.served_partitions import Partitions
from flowstone.types import TopicPartition

PARTITION_LABELS_MAX = 1000
# How many partitions are looked at before others get their turn.
SLICE_PARTITIONS = 200


async def write_stable_offsets(page: Exposition, partitions: Partitions) -> None:
    open_transactions, lags = 0, list[tuple[int, TopicPartition]]()
    left = iter([*partitions])  # some may go while others have their turn
    while slice_ := list(islice(left, SLICE_PARTITIONS)):
        for partition in slice_:
            undecided = partition.log.producers.undecided
            if undecided is None:
                continue
            if partition.is_leader:
                open_transactions += len(undecided)
            lag = partition.high_watermark.offset - partition.last_stable_offset
            lags.append((lag, partition.topic_partition))
        await yield_to_loop()
    if len(lags) > PARTITION_LABELS_MAX:
        lags = nlargest(PARTITION_LABELS_MAX, lags)
    # a topic's name has no characters to escape
    samples = {f'{{topic="{topic}",partition="{index}"}}': float(lag) for lag, (topic, index) in lags}
    page.gauge(
        "flowstone_partition_open_transactions",
        "Open transactions, once for each led partition that they have written to.",
        open_transactions,
    )
    page.gauge(
        "flowstone_partition_last_stable_offset_lag",
        "Records that read_committed consumers do not see yet because of open transactions.",
        samples,
    )
