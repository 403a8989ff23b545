"""Detection of lost records, and the messages about them.

Records are lost if they were to be read and no longer exist, because of retention or because records or the topic were
deleted. Gaps between existing records are not losses: compaction and transactions leave them. With `failOnDataLoss` a
loss fails the query; without it, every loss causes a warning and the read continues with the records that exist. No
loss is silent.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from flowstone.errors import FlowstoneError
from flowstone.types import TopicPartition
from pyspark_flowstone.offsets import OffsetRange

LOGGER = logging.getLogger("pyspark_flowstone")

READ_MAX = 5  # partitions shown in one message
GO_ON = "or set failOnDataLoss=false to go on without them"


class DataLost(FlowstoneError):
    """Records that were to be read no longer exist. The message says in one sentence which, and what to do."""


class LossRule:
    def __init__(self, *, is_failure: bool) -> None:
        self._is_failure = is_failure

    def overtaken(self, partition: TopicPartition, start: int, log_start: int) -> None:
        """Report that records before `log_start` were deleted before they were read."""
        self._report(
            f"{partition}: offsets {start} to {log_start - 1} are gone, the log starts at {log_start} now; "
            "start at an offset that is there (a streaming query: with a new checkpoint), keep records longer with "
            f"retention.ms and retention.bytes, {GO_ON}"
        )

    def beyond_end(self, partition: TopicPartition, offset: int, log_end: int) -> None:
        """Report that the offset is beyond the log's end: the topic was deleted and recreated."""
        self._report(
            f"{partition}: offsets up to {offset - 1} were expected and the log ends at {log_end}; the topic was "
            "probably deleted and created again: start over with a new checkpoint or other offsets, "
            f"{GO_ON.replace('without them', 'with what is there')}"
        )

    def recreated(self, topic: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Report that a topic was deleted and created again after a query had read the offsets before these."""
        shown = sorted(offsets.items())[:READ_MAX]
        read = ", ".join(f"{offset} of partition {each.partition}" for each, offset in shown)
        more = ", …" if len(offsets) > READ_MAX else ""
        self._report(
            f"topic {topic} was deleted and created again (it has another id); the old one had been read up to offset "
            f"{read}{more}, and what came after is gone: start over (a streaming query: with a new checkpoint), or set "
            "failOnDataLoss=false to go on with the new topic from its start"
        )

    def recreated_since_planned(self, wanted: OffsetRange) -> None:
        """Report that a topic was deleted, and created again, between the planning of a read and its tasks."""
        topic, number = wanted.partition
        self._report(
            f"topic {topic} was deleted and created again after this read was planned: offsets {wanted.start} to "
            f"{wanted.end - 1} of partition {number} are gone; start the query again, which tells how it can go on, "
            f"{GO_ON}"
        )

    def partition_gone(self, partition: TopicPartition, offset: int) -> None:
        self._report(
            f"{partition}: it no longer exists, and was read up to offset {offset}; what came after is gone: "
            f"leave the topic out, start over with a new checkpoint, {GO_ON}"
        )

    def _report(self, sentence: str) -> None:
        if self._is_failure:
            raise DataLost(sentence)
        LOGGER.warning("flowstone: %s", sentence)

    def clip(self, wanted: OffsetRange, log_start: int, log_end: int) -> OffsetRange:
        """Return the part of a range that exists, after reporting every part that does not."""
        start, end = wanted.start, wanted.end
        if max(start, end) > log_end:
            self.beyond_end(wanted.partition, max(start, end), log_end)
            start, end = min(start, log_end), min(end, log_end)
        if start < log_start and start < end:
            self.overtaken(wanted.partition, start, log_start)
            start = min(log_start, end)
        return wanted._replace(start=start, end=end)
