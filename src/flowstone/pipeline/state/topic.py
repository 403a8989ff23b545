"""The compacted topic that holds the state of pipelines: creation, reading and appending.

Owns the topic's name and settings. A `StateTopic` is used by one thread. It reads the topic from its beginning once,
and later only what has been added. The topic has the broker's time as timestamps, so that the clocks of machines that
run pipelines need not agree.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self

from flowstone.client import EARLIEST, LATEST, ClientError, Cluster, DeliveryFailed, Producer
from flowstone.client.security import security_of
from flowstone.errors import ApiError
from flowstone.pipeline.errors import PipelineError
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import (
    Record,
    build_batch,
    checksum_matches,
    decode_records,
    parse_header,
)

STATE_TOPIC = "_flowstone.pipelines"
# Small segments: compaction leaves the newest one alone, and all of it is read at each start.
SETTINGS = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",
    "segment.bytes": str(8 << 20),
    "min.cleanable.dirty.ratio": "0.2",
}
CREATION_DEADLINE_S = 15.0
DEADLINE_S = 15.0
CLIENT_ID = "flowstone-pipeline"

_PARTITION = TopicPartition(STATE_TOPIC, 0)


class Entry(NamedTuple):
    """A record of the topic; a value of None deletes the key."""

    offset: int
    timestamp_ms: int
    key: str
    value: bytes | None


class StateTopic:
    def __init__(self, bootstrap: str, *, deadline_s: float = DEADLINE_S) -> None:
        self._bootstrap, self._deadline_s = bootstrap, deadline_s
        try:
            self._cluster = Cluster(bootstrap, client_id=CLIENT_ID, deadline_s=deadline_s)
        except ClientError as error:
            raise PipelineError(f"bootstrap: {error}") from error
        self._producer: Producer | None = None
        self._position = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None
        self._cluster.close()

    @property
    def exists(self) -> bool:
        return STATE_TOPIC in self._cluster.topics([STATE_TOPIC])

    def ensure(self) -> None:
        """Create the topic unless it exists. Raises PipelineError if the broker refuses."""
        if self.exists:
            return
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

        admin = AdminClient(
            {
                "bootstrap.servers": self._bootstrap,
                "client.id": CLIENT_ID,
                "log_level": 0,
                **security_of(self._bootstrap).librdkafka(),
            }
        )
        new = NewTopic(STATE_TOPIC, num_partitions=1, replication_factor=-1, config=SETTINGS)
        try:
            admin.create_topics([new], operation_timeout=CREATION_DEADLINE_S)[STATE_TOPIC].result(CREATION_DEADLINE_S)
        except (KafkaException, TimeoutError) as error:
            cause = error.args[0] if error.args else error
            if isinstance(cause, KafkaError) and cause.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            reason = cause.str() if isinstance(cause, KafkaError) else "no answer in time"
            raise PipelineError(
                f"topic {STATE_TOPIC}, which holds the state of pipelines, cannot be created: {reason}; create it with "
                "one partition and cleanup.policy=compact"
            ) from error

    def read(self) -> list[Entry]:
        """Return the entries that were added since the last call; the first call returns all. Raises ClientError.

        Records without a key, and batches with a wrong checksum, are not returned.
        """
        end = self._cluster.list_offsets({_PARTITION: LATEST})[_PARTITION].offset
        if self._position < 0 or end < self._position:  # at first, or after the topic was deleted and created again
            self._position = self._cluster.list_offsets({_PARTITION: EARLIEST})[_PARTITION].offset
        entries: list[Entry] = []
        if self._position < end:
            for fetched in self._cluster.fetch(_PARTITION, self._position, end):
                entries += _entries(fetched.records)
        entries = [each for each in entries if each.offset >= self._position]
        self._position = max(end, entries[-1].offset + 1 if entries else 0)
        return entries

    def append(self, records: Sequence[tuple[str, bytes | None]]) -> int:
        """Write records with acks=all and return the offset of the first. Raises ClientError.

        After an error it is not known whether they were written; writing them again is harmless.
        """
        now_ms = int(time.time() * 1000)
        batch = bytearray(
            build_batch([Record(at, now_ms, key.encode(), value) for at, (key, value) in enumerate(records)])
        )
        if self._producer is None:
            self._producer = Producer(self._cluster, deadline_s=self._deadline_s)
        try:
            self._producer.send(_PARTITION, batch, len(records))
            return self._producer.flush()[_PARTITION] - len(records)
        except DeliveryFailed:
            self._producer = None
            raise


def _entries(view: memoryview) -> list[Entry]:
    found = []
    at = 0
    while at < len(view):
        header = parse_header(view, at)
        if checksum_matches(view, at, header) and not header.is_control:
            try:
                records = decode_records(view, at)
            except ApiError:
                records = []
            for each in records:
                if each.key is not None:
                    key = each.key.decode(errors="replace")
                    found.append(Entry(each.offset, each.timestamp, key, each.value))
        at += header.size_bytes
    return found
