"""Producer of records to a topic that counts the stored ones. Memory is bounded: a full queue blocks the caller."""

from __future__ import annotations

import time
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from flowstone.cli.common.clients import REQUEST_TIMEOUT_S, client_config, connect, explain, find_topic, result_of
from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.text import counted
from flowstone.cli.common.times import TIME_MS_MAX, format_time
from flowstone.errors import ErrorCode

LINGER_MS = 5
POLL_EVERY_RECORDS = 1000
POLL_S = 0.5
TIMEOUT_NOTICED_S = 2.0  # the library checks for expired records once a second
QUEUED_KIB_MAX = 64 << 10
RECORD_BYTES_MAX = 16 << 20  # only the broker and the topic limit the size
_NOW = 0  # the library's maximum

Header = tuple[str, str | bytes | None]


class OutgoingRecord(NamedTuple):
    value: bytes
    key: bytes | None = None
    headers: list[Header] = []
    timestamp_ms: int | None = None


class Sender:
    """A producer for one topic. Raises CommandError if the topic does not exist."""

    def __init__(self, bootstrap: str, topic: str, acks: str, timeout_s: float) -> None:
        find_topic(connect(bootstrap), bootstrap, topic)
        self.stored = 0
        self._bootstrap, self._topic, self._timeout_s = bootstrap, topic, timeout_s
        self._failure: KafkaError | None = None
        # The range of the records' timestamps, to name one if the broker refuses it.
        self._earliest_ms, self._latest_ms = TIME_MS_MAX, 0
        self._sent = 0
        self._producer = Producer(
            client_config(
                bootstrap,
                acks=acks,
                partitioner="murmur2_random",  # the Java client's
                enable_idempotence=acks == "all",
                linger_ms=LINGER_MS,
                message_timeout_ms=int(timeout_s * 1000),
                message_max_bytes=RECORD_BYTES_MAX,
                queue_buffering_max_kbytes=QUEUED_KIB_MAX,
            )
        )

    def send(self, record: OutgoingRecord) -> bool:
        """Send a record, waiting while the queue is full; return False if an earlier record has failed."""
        value, key, headers, timestamp_ms = record
        if timestamp_ms is not None:
            self._earliest_ms = min(self._earliest_ms, timestamp_ms)
            self._latest_ms = max(self._latest_ms, timestamp_ms)
        while self._failure is None:
            try:
                self._producer.produce(
                    self._topic,
                    value,
                    key,
                    headers=headers,
                    timestamp=timestamp_ms or _NOW,
                    on_delivery=self._on_delivery,
                )
                break
            except BufferError:
                self._producer.poll(POLL_S)
            except KafkaException as error:
                self._failure = error.args[0]
        self._sent += 1
        if self._sent % POLL_EVERY_RECORDS == 0:
            self._producer.poll(0)
        return self._failure is None

    def finish(self) -> None:
        """Wait until every record is acknowledged. Raises CommandError if some were not stored."""
        left, waited_s = self._producer.flush(0), 0.0
        # Short waits, because an interrupt is handled only between them.
        while left and waited_s < self._timeout_s + TIMEOUT_NOTICED_S:
            left, waited_s = self._producer.flush(POLL_S), waited_s + POLL_S
        if self._failure is not None or left:
            raise CommandError(f"stored only {counted(self.stored, 'record')}; {self._reason(self._failure)}")

    def _reason(self, failure: KafkaError | None) -> str:
        if failure is None or failure.code() == KafkaError._MSG_TIMED_OUT:
            return (
                f"{self._bootstrap} did not take the next ones within {self._timeout_s:g} s: "
                "see its log, and check its disk with `flowstone doctor --data DIR`"
            )
        if failure.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return (
                "the next one is larger than the topic takes: raise that with "
                f"`flowstone topic alter {self._topic} --set max.message.bytes=N`"
            )
        if failure.code() == ErrorCode.INVALID_TIMESTAMP:
            return self._timestamp_reason()
        return str(explain(failure, self._bootstrap))

    def _timestamp_reason(self) -> str:
        """Return the name and value of the setting that a record's timestamp exceeds."""
        ahead, behind = "message.timestamp.after.max.ms", "message.timestamp.before.max.ms"
        resource = ConfigResource(ConfigResource.Type.TOPIC, self._topic)
        admin = AdminClient(client_config(self._bootstrap))
        answer = admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)[resource]
        limits = result_of(answer, self._bootstrap)
        is_ahead = self._latest_ms - time.time() * 1000 > int(limits[ahead].value)
        name, time_ms = (ahead, self._latest_ms) if is_ahead else (behind, self._earliest_ms)
        return (
            f"a record's time, {format_time(time_ms)}, is further {'ahead of' if is_ahead else 'behind'} the broker's "
            f"clock than {name}={limits[name].value} (milliseconds) allows: correct it, or "
            f"`flowstone topic alter {self._topic} --set {name}=N`"
        )

    def _on_delivery(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self.stored += 1
        else:
            self._failure = self._failure or error
