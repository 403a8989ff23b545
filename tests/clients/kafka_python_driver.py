"""kafka-python: pure Python, with versions up to the newest."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from flowstone.errors import ErrorCode
from tests.clients.driver import (
    FETCH_WAIT_MS,
    NO_COMPRESSION,
    REPLICATION_FACTOR,
    TIMEOUT_MS,
    TIMEOUT_S,
    Received,
    Refused,
    Sent,
    sends_once,
)

with warnings.catch_warnings():
    # It reads its schemas, as it is imported, by a call that Python 3.11 calls deprecated.
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import ConfigResource, ConfigResourceType
    from kafka.errors import BrokerResponseError


class KafkaPythonDriver:
    name = "kafka-python"
    # Its snappy needs a library of its own, python-snappy, which nothing else here wants.
    codecs = (NO_COMPRESSION, "gzip", "lz4", "zstd")

    def __init__(self, bootstrap: str) -> None:
        self._common = {"bootstrap_servers": bootstrap}
        self._admin = KafkaAdminClient(**self._common)
        # One for all calls: a new one takes a tenth of a second before it asks for its first topic.
        self._reader = KafkaConsumer(
            **self._common, fetch_max_wait_ms=FETCH_WAIT_MS, enable_auto_commit=False, auto_offset_reset="none"
        )

    def close(self) -> None:
        self._reader.close()
        self._admin.close()

    def produce(
        self,
        topic: str,
        records: Sequence[Sent],
        *,
        acks: str = "all",
        compression: str = NO_COMPRESSION,
        idempotent: bool = False,
        transactional_id: str | None = None,
        size_bytes_max: int | None = None,
    ) -> list[tuple[int, int]]:
        sizes = {} if size_bytes_max is None else {"max_request_size": size_bytes_max}
        producer = KafkaProducer(
            **self._common,
            acks="all" if acks == "all" else int(acks),
            compression_type=None if compression == NO_COMPRESSION else compression,
            enable_idempotence=sends_once(acks, idempotent=idempotent) or transactional_id is not None,
            transactional_id=transactional_id,
            linger_ms=5,
            delivery_timeout_ms=TIMEOUT_MS,
            request_timeout_ms=TIMEOUT_MS - 1000,
            **sizes,
        )
        try:
            with _refusals():
                if transactional_id is not None:
                    producer.init_transactions()
                futures = [
                    producer.send(
                        topic,
                        value=record.value,
                        key=record.key,
                        headers=list(record.headers),
                        partition=record.partition,
                        timestamp_ms=record.timestamp_ms,
                    )
                    for record in records
                ]
                done = [future.get(TIMEOUT_S) for future in futures]
        finally:
            producer.close(timeout=TIMEOUT_S)
        return [(metadata.partition, metadata.offset) for metadata in done]

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Received]:
        with self._consumer(topic, partition) as consumer:
            consumer.seek(TopicPartition(topic, partition), offset)
            return _read(consumer, count)

    def consume_from_beginning(self, topic: str, partition: int, count: int) -> list[Received]:
        with self._consumer(topic, partition) as consumer:
            consumer.seek_to_beginning()
            return _read(consumer, count)

    def position_at_end(self, topic: str, partition: int) -> int:
        with self._consumer(topic, partition) as consumer:
            consumer.seek_to_end()
            return consumer.position(TopicPartition(topic, partition), timeout_ms=TIMEOUT_MS)

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        wanted = TopicPartition(topic, partition)
        with self._consumer(topic, partition) as consumer:
            return consumer.beginning_offsets([wanted])[wanted], consumer.end_offsets([wanted])[wanted]

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        wanted = TopicPartition(topic, partition)
        with self._consumer(topic, partition) as consumer:
            found = consumer.offsets_for_times({wanted: timestamp_ms})[wanted]
        return None if found is None else found.offset

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        wanted = {
            "num_partitions": partitions,
            "replication_factor": REPLICATION_FACTOR,
            "configs": dict(configs or {}),
        }
        with _refusals():
            self._admin.create_topics({topic: wanted})

    def delete_topic(self, topic: str) -> None:
        with _refusals():
            self._admin.delete_topics([topic])

    def topics(self) -> set[str]:
        return set(self._admin.list_topics())

    def partition_count(self, topic: str) -> int:
        (description,) = self._admin.describe_topics([topic])
        if description["error_code"]:
            raise Refused(description["error_code"])
        return len(description["partitions"])

    def create_partitions(self, topic: str, total: int) -> None:
        with _refusals():
            self._admin.create_partitions({topic: total})

    def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        wanted = TopicPartition(topic, partition)
        with _refusals():
            return self._admin.delete_records({wanted: before_offset})[wanted]["low_watermark"]

    def topic_configs(self, topic: str) -> dict[str, str]:
        found = self._admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
        return {name: entry["value"] for name, entry in found["topic"][topic].items()}

    def alter_topic_config(self, topic: str, name: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={name: value})
        told = self._admin.alter_configs([resource], raise_on_unknown=False)["topic"][topic]
        if told != "OK":
            # The library keeps only the text of the error, which begins with its number: "[Error 40] ..."
            raise Refused(ErrorCode(int(told.split("]")[0].removeprefix("[Error "))), told)

    @contextmanager
    def _consumer(self, topic: str, partition: int) -> Any:
        self._reader.assign([TopicPartition(topic, partition)])
        try:
            with _refusals():
                yield self._reader
        finally:
            self._reader.unsubscribe()


def _read(consumer: KafkaConsumer, count: int) -> list[Received]:
    records: list[Received] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(records) < count and time.monotonic() < deadline:
        for batch in consumer.poll(timeout_ms=1000, max_records=count - len(records)).values():
            records += [
                Received(each.partition, each.offset, each.key, each.value, each.timestamp, tuple(each.headers))
                for each in batch
            ]
    return records


@contextmanager
def _refusals() -> Any:
    try:
        yield
    except BrokerResponseError as error:
        raise Refused(error.errno, error) from error
