"""A dead letter queue as the command line reads it: its letters in order, and which of them are settled."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from flowstone.cli.common.clients import REQUEST_TIMEOUT_S, client_config, connect, explain, find_topic
from flowstone.cli.common.errors import CommandError
from flowstone.cli.dlq.letters import Letter
from flowstone.cli.dlq.settled import Settled
from flowstone.cli.txn.places import parse_place
from flowstone.types import TopicPartition

GROUP_PREFIX = "flowstone.dlq."  # and the queue's name: the group that commits, and the transactional id
RECORDS_PER_CALL = 500
POLL_S = 0.5
SILENCE_MAX_S = 30.0
QUEUED_KIB_MAX = 16 << 10


class DeadLetterQueue:
    """The letters that TOPIC, TOPIC/PARTITION or TOPIC/PARTITION@OFFSET names."""

    def __init__(self, bootstrap: str, place: str) -> None:
        """Open the queue. Raises CommandError if there is none, or nothing listens at the address."""
        self.bootstrap = bootstrap
        where: TopicPartition | None = None
        self.offset: int | None = None
        if "/" in place or "@" in place:
            where, self.offset = parse_place(place)
        self.topic = where.topic if where is not None else place
        known = sorted(find_topic(connect(bootstrap), bootstrap, self.topic, to_use=False).partitions)
        if where is not None and where.partition not in known:
            raise CommandError(f"{self.topic} has no partition {where.partition}: its partitions are 0 to {known[-1]}")
        chosen = known if where is None else [where.partition]
        self.partitions = [TopicPartition(self.topic, each) for each in chosen]
        self.name = GROUP_PREFIX + self.topic
        self.consumer = Consumer(reading_config(bootstrap, self.name))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.consumer.close()
        if isinstance(error, KafkaException):
            raise explain(error, self.bootstrap) from None

    def settled(self, partition: TopicPartition) -> Settled | None:
        """Return which letters of the partition are settled, or None if no offset is committed."""
        asked = [confluent_kafka.TopicPartition(*partition)]
        [found] = self.consumer.committed(asked, timeout=REQUEST_TIMEOUT_S)
        if found.error is not None:
            raise explain(found.error, self.bootstrap)
        return Settled(found.offset, found.metadata or "") if found.offset >= 0 else None

    def read(self, partition: TopicPartition, start: int) -> Iterator[Letter]:
        """Yield the letters from an offset to the present end, or to the one that is wanted."""
        asked = confluent_kafka.TopicPartition(*partition)
        first, end = self.consumer.get_watermark_offsets(asked, timeout=REQUEST_TIMEOUT_S)
        if self.offset is not None:
            end = min(end, self.offset + 1)
        start = max(start, first)
        if start >= end:
            return
        self.consumer.assign([confluent_kafka.TopicPartition(*partition, start)])
        for message in messages(self.consumer, self.bootstrap):
            offset = message.offset()
            if message.error() is not None or offset is None or offset >= end:
                return
            yield Letter.of(message)
            if offset == end - 1:
                return


def reading_config(bootstrap: str, group: str) -> dict[str, object]:
    """Return the configuration of a reader; it sees what a share group sees by default: also uncommitted records."""
    return client_config(
        bootstrap,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="error",
        enable_partition_eof=True,
        isolation_level="read_uncommitted",
        queued_max_messages_kbytes=QUEUED_KIB_MAX,
    )


def messages(consumer: Consumer, bootstrap: str) -> Iterator[Message]:
    """Yield the records from where a consumer is; one with an error is the end of the partition."""
    waited_s = 0.0
    while True:
        # Short waits, because an interrupt is handled only between them.
        while (first := consumer.poll(POLL_S)) is None:
            waited_s += POLL_S
            if waited_s >= SILENCE_MAX_S:
                raise CommandError(f"no records from {bootstrap} for {SILENCE_MAX_S:.0f} s: see the broker's log")
        waited_s = 0.0
        for message in [first, *consumer.consume(RECORDS_PER_CALL, 0)]:
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise explain(error, bootstrap)
            yield message
