"""The reading of one range of records as Arrow batches, in a task.

Runs in Spark's Python workers. A range that is read again, by a retried task or a replayed batch, gives the same rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flowstone.arrow.decode import Decoder
from flowstone.client import OffsetsLost, TopicRecreated
from pyspark_flowstone.connections import cluster_of, column_memory
from pyspark_flowstone.loss import LossRule
from pyspark_flowstone.offsets import OffsetRange
from pyspark_flowstone.options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa

LOGGER = logging.getLogger("pyspark_flowstone.reader")


def read_range(options: SourceOptions, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
    rule = LossRule(is_failure=options.fail_on_data_loss)
    cluster, allocate = cluster_of(options.bootstrap), column_memory().allocate
    partition, start, end, topic_id = wanted
    fetched_bytes = 0
    while start < end:
        decoder = Decoder(
            partition, options.columns, start, end, read_committed=options.read_committed, allocate=allocate
        )
        try:
            for fetched in cluster.fetch(
                partition, start, end, read_committed=options.read_committed, topic_id=topic_id
            ):
                fetched_bytes += len(fetched.records)
                yield from decoder.feed(fetched.records, fetched.aborted)
            start = end
        except OffsetsLost as lost:  # deleted since the range was planned
            rule.overtaken(partition, lost.start, lost.log_start)
            start = lost.log_start
        except TopicRecreated:
            rule.recreated_since_planned(wanted)
            start = end
        yield from decoder.finish()
    LOGGER.info("fetched %d bytes for %s", fetched_bytes, wanted)
