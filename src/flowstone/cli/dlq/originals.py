"""Reader of single records in source topics, for letters of which only headers were kept."""

from __future__ import annotations

from collections.abc import Iterator

import confluent_kafka
from confluent_kafka import Consumer, KafkaException, Message

from flowstone.cli.common.clients import REQUEST_TIMEOUT_S
from flowstone.cli.dlq.letters import Content, content_of
from flowstone.cli.dlq.queue import messages, reading_config
from flowstone.types import TopicPartition

# A record that is at most this many offsets ahead is reached by reading on.
READ_ON_MAX = 1000


class Originals:
    def __init__(self, bootstrap: str, group: str) -> None:
        self._bootstrap = bootstrap
        self._consumer = Consumer(reading_config(bootstrap, group))
        self._at: TopicPartition | None = None
        self._stream: Iterator[Message] = iter(())
        self._next = 0  # offset of the next record of the stream
        self._held: Message | None = None  # it was read, and is beyond what was wanted

    def close(self) -> None:
        self._consumer.close()

    def find(self, partition: TopicPartition, offset: int) -> Content | None:
        """Return the record at an offset, None if it is no longer there. The partition must exist."""
        asked = confluent_kafka.TopicPartition(*partition)
        first, end = self._consumer.get_watermark_offsets(asked, timeout=REQUEST_TIMEOUT_S)
        if not first <= offset < end:
            return None
        if partition != self._at or not self._next <= offset <= self._next + READ_ON_MAX:
            self._at, self._next, self._held = partition, offset, None
            self._consumer.assign([confluent_kafka.TopicPartition(*partition, offset)])
            self._stream = messages(self._consumer, self._bootstrap)
        try:
            return self._read_to(offset)
        except KafkaException:
            self._at = None
            raise

    def _read_to(self, offset: int) -> Content | None:
        while True:
            message, self._held = self._held or next(self._stream), None
            at = message.offset()
            if message.error() is not None or at is None:
                self._at = None
                return None
            if at > offset:
                self._held, self._next = message, offset + 1
                return None
            self._next = at + 1
            if at == offset:
                return content_of(message)
