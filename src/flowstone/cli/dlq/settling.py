"""Retrying and dropping: transactions that write records back and commit, together, which letters are settled.

Retry and drop of one queue have the same transactional id, so a second one ends the first, and begins with what that
has committed. A letter is never written back twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Self

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from flowstone.cli.common.clients import (
    REQUEST_TIMEOUT_S,
    client_config,
    connect,
    explain,
    fetch_metadata,
    result_of,
)
from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.text import counted
from flowstone.cli.dlq.letters import Content, Letter
from flowstone.cli.dlq.originals import Originals
from flowstone.cli.dlq.queue import DeadLetterQueue
from flowstone.cli.dlq.settled import Settled
from flowstone.types import TopicPartition

# Letters and bytes in one transaction, and reasons that are told.
LETTERS_MAX = 500
BYTES_MAX = 8 << 20
PROBLEMS_MAX = 1000
RECORD_BYTES_MAX = 16 << 20
TRANSACTION_TIMEOUT_S = 60
OVERTAKEN = (
    *(KafkaError._FENCED, KafkaError.PRODUCER_FENCED),
    KafkaError.INVALID_PRODUCER_EPOCH,
)
RETENTION = "offsets.retention.minutes"

# The library logs fatal errors at any level; they are reported as errors of the command.
_SILENT = logging.getLogger("flowstone.cli.dlq.silent")
_SILENT.disabled = True

Wanted = Callable[[Letter], bool]


class Problem(NamedTuple):
    letter: str
    reason: str


class Batch(NamedTuple):
    """The letters that one transaction settles."""

    partition: TopicPartition
    letters: list[Letter]
    writes: list[tuple[TopicPartition, Content]]

    @property
    def is_full(self) -> bool:
        size_bytes = sum(len(content.key or b"") + len(content.value or b"") for _to, content in self.writes)
        return len(self.letters) >= LETTERS_MAX or size_bytes >= BYTES_MAX


class Settling:
    def __init__(self, queue: DeadLetterQueue, *, is_retry: bool, even_old: bool) -> None:
        """Begin to settle letters of the queue, and end any other retry or drop of this queue that still runs."""
        self._queue, self._is_retry, self._even_old = queue, is_retry, even_old
        self.settled_count, self.problem_count = 0, 0
        self.problems: list[Problem] = []
        self._admin = connect(queue.bootstrap)
        known = fetch_metadata(self._admin, queue.bootstrap).topics
        self._partition_counts = {name: len(topic.partitions) for name, topic in known.items()}
        self._producer = Producer(
            client_config(
                queue.bootstrap,
                transactional_id=queue.name,
                transaction_timeout_ms=TRANSACTION_TIMEOUT_S * 1000,
                message_timeout_ms=TRANSACTION_TIMEOUT_S * 1000,
                message_max_bytes=RECORD_BYTES_MAX,
                partitioner="murmur2_random",
                linger_ms=0,
                logger=_SILENT,
            )
        )
        self._producer.init_transactions(REQUEST_TIMEOUT_S)
        self._originals = Originals(queue.bootstrap, queue.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._originals.close()

    def settle(self, wanted: Wanted) -> None:
        """Settle the open letters that are wanted, partition by partition, from the oldest on."""
        for partition in self._queue.partitions:
            self._settle_partition(partition, wanted)

    def _settle_partition(self, partition: TopicPartition, wanted: Wanted) -> None:
        known = self._queue.settled(partition)
        settled = known or Settled(0)
        not_before_ms = 0 if known is not None or self._even_old or not self._is_retry else self._remembered_from_ms()
        batch, first_open = Batch(partition, [], []), None
        for letter in self._queue.read(partition, settled.next_offset):
            if letter.offset in settled:
                continue
            if letter.timestamp_ms < not_before_ms:
                raise CommandError(
                    f"{letter.place} is older than the time for which brokers remember what was retried ({RETENTION}): "
                    "give --even-old if it was not"
                )
            if not wanted(letter) or not self._take(batch, letter):
                first_open = letter.offset if first_open is None else first_open
                continue
            if batch.is_full:
                self._commit(batch, settled, first_open)
                batch = Batch(partition, [], [])
        if batch.letters:
            self._commit(batch, settled, first_open)

    def _take(self, batch: Batch, letter: Letter) -> bool:
        """Add a letter to the transaction; return False if it stays open, because it cannot be retried."""
        if self._is_retry:
            found = self._write_of(letter)
            if isinstance(found, str):
                self.problem_count += 1
                if len(self.problems) < PROBLEMS_MAX:
                    self.problems.append(Problem(letter.place, found))
                return False
            batch.writes.append(found)
        batch.letters.append(letter)
        return True

    def _write_of(self, letter: Letter) -> tuple[TopicPartition, Content] | str:
        """Return the partition and content to write back, or why that is not possible."""
        if letter.origin is None:
            return "its headers do not say where it comes from"
        source, offset = letter.origin
        if source.topic.startswith("__"):
            return f"{source.topic} is an internal topic"
        count = self._partition_counts.get(source.topic)
        if count is None:
            return f"there is no topic {source.topic}"
        if source.partition >= count:
            return f"{source.topic} has no partition {source.partition}"
        content = letter.content if letter.has_content else self._originals.find(source, offset)
        if content is None:
            return f"only its headers were kept, and {letter.origin_place} is no longer there"
        return source, letter.retried(content)

    def _commit(self, batch: Batch, settled: Settled, first_open: int | None) -> None:
        for letter in batch.letters:
            settled.add(letter.offset)
        settled.advance(batch.letters[-1].offset + 1 if first_open is None else first_open)
        place = confluent_kafka.TopicPartition(*batch.partition, settled.next_offset, metadata=settled.metadata())
        producer, group = self._producer, self._queue.consumer.consumer_group_metadata()
        producer.begin_transaction()
        try:
            for (topic, partition), content in batch.writes:
                key, value, headers = content
                producer.produce(topic, value, key, partition, headers=list(headers))
            producer.send_offsets_to_transaction([place], group, REQUEST_TIMEOUT_S)
            producer.commit_transaction(TRANSACTION_TIMEOUT_S)
        except KafkaException as error:
            raise self._abort(error, batch) from None
        self.settled_count += len(batch.letters)

    def _abort(self, error: KafkaException, batch: Batch) -> CommandError:
        first, last = batch.letters[0].place, batch.letters[-1].offset
        # If it fails, another retry or drop has ended this one, or the broker does after the transaction's timeout.
        with suppress(KafkaException):
            self._producer.abort_transaction(REQUEST_TIMEOUT_S)
        code, reason = error.args[0].code(), str(explain(error, self._queue.bootstrap))
        if code in OVERTAKEN:
            reason = (
                f"another retry or drop of {self._queue.topic} has begun since: wait for its end, and repeat this one"
            )
        done = counted(self.settled_count, "letter")
        return CommandError(f"{first} to {last} stay open, after {done} that this command has settled: {reason}")

    def _remembered_from_ms(self) -> float:
        """Return the time since which brokers have kept every commit."""
        admin: AdminClient = self._admin
        broker = next(iter(fetch_metadata(admin, self._queue.bootstrap).brokers))
        resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
        answer = admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)[resource]
        minutes = int(result_of(answer, self._queue.bootstrap)[RETENTION].value)
        return (time.time() - minutes * 60) * 1000
