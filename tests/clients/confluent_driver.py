"""confluent-kafka, which is librdkafka: the middle of the versions in use."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic

from flowstone.errors import ErrorCode
from tests.clients.driver import (
    FETCH_WAIT_MS,
    IS_CLUSTER,
    NO_COMPRESSION,
    REPLICATION_FACTOR,
    TIMEOUT_MS,
    TIMEOUT_S,
    Received,
    Refused,
    Sent,
    sends_once,
)

# Many batches rather than few: indexes have an entry for a batch at most.
BATCH_BYTES = 64 * 1024
# The brokers of a cluster hear of a topic one after the other, some after its creation was acknowledged, as in Kafka;
# librdkafka does not ask again for watermarks.
NEW_TOPIC_S, RETRY_S = 2.0, 0.05


class ConfluentDriver:
    name = "confluent-kafka"
    codecs = (NO_COMPRESSION, "gzip", "snappy", "lz4", "zstd")

    def __init__(self, bootstrap: str) -> None:
        self._common = {"bootstrap.servers": bootstrap}
        self._admin = AdminClient(self._common)

    def close(self) -> None:
        del self._admin

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
        settings: dict[str, Any] = {
            **self._common,
            "acks": acks,
            "partitioner": "murmur2_random",
            "compression.type": compression,
            "enable.idempotence": sends_once(acks, idempotent=idempotent) or transactional_id is not None,
            "message.timeout.ms": TIMEOUT_MS,
            "linger.ms": 5,
            "batch.size": BATCH_BYTES,
        }
        if size_bytes_max is not None:
            settings["message.max.bytes"] = size_bytes_max
        if transactional_id is not None:
            settings["transactional.id"] = transactional_id
        producer = ck.Producer(settings)
        if transactional_id is not None:
            with _refusals():
                producer.init_transactions(TIMEOUT_S)
        delivered: list[tuple[ck.KafkaError | None, ck.Message]] = []
        for record in records:
            where: dict[str, int] = {} if record.partition is None else {"partition": record.partition}
            producer.produce(
                topic,
                value=record.value,
                key=record.key,
                timestamp=record.timestamp_ms or 0,
                headers=list(record.headers),
                on_delivery=lambda error, message: delivered.append((error, message)),
                **where,
            )
        assert producer.flush(TIMEOUT_S) == 0, "records are still on their way"
        for error, _message in delivered:
            if error is not None:
                raise _refusal(error)
        return [(message.partition(), message.offset()) for _error, message in delivered]

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Received]:
        records: list[Received] = []
        deadline = time.monotonic() + TIMEOUT_S
        with self._consumer() as consumer:
            # With the leader unknown, an assignment to the beginning would wait half a second before it looks again.
            consumer.list_topics(topic, timeout=TIMEOUT_S)
            consumer.assign([ck.TopicPartition(topic, partition, offset)])
            while len(records) < count and time.monotonic() < deadline:
                for message in consumer.consume(count - len(records), timeout=1):
                    if message.error() is not None:
                        raise _refusal(message.error())
                    records.append(_received(message))
        return records

    def consume_from_beginning(self, topic: str, partition: int, count: int) -> list[Received]:
        return self.consume(topic, partition, ck.OFFSET_BEGINNING, count)

    def position_at_end(self, topic: str, partition: int) -> int:
        # librdkafka knows a position only after a first message, but tells which offset the logical one stands for.
        with self._consumer() as consumer, _refusals():
            wanted = ck.TopicPartition(topic, partition, ck.OFFSET_END)
            return consumer.offsets_for_times([wanted], timeout=TIMEOUT_S)[0].offset

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        deadline = time.monotonic() + NEW_TOPIC_S
        while True:
            try:
                return self._watermarks(topic, partition)
            except Refused as refusal:
                if not (IS_CLUSTER and refusal.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                    raise
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_S)

    def _watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        with self._consumer() as consumer, _refusals():
            return consumer.get_watermark_offsets(ck.TopicPartition(topic, partition), timeout=TIMEOUT_S)

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        with self._consumer() as consumer, _refusals():
            found = consumer.offsets_for_times([ck.TopicPartition(topic, partition, timestamp_ms)], timeout=TIMEOUT_S)[
                0
            ]
        return found.offset if found.offset >= 0 else None

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        wanted = NewTopic(topic, partitions, REPLICATION_FACTOR, config=dict(configs or {}))
        self._finish(self._admin.create_topics([wanted]))

    def delete_topic(self, topic: str) -> None:
        self._finish(self._admin.delete_topics([topic]))

    def topics(self) -> set[str]:
        return set(self._admin.list_topics(timeout=TIMEOUT_S).topics)

    def partition_count(self, topic: str) -> int:
        return len(self._describe(topic).partitions)

    def topic_id(self, topic: str) -> str:
        return str(self._describe(topic).topic_id)

    def create_partitions(self, topic: str, total: int) -> None:
        self._finish(self._admin.create_partitions([NewPartitions(topic, total)]))

    def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        wanted = [ck.TopicPartition(topic, partition, before_offset)]
        return self._finish(self._admin.delete_records(wanted)).low_watermark

    def topic_configs(self, topic: str) -> dict[str, str]:
        entries = self._finish(self._admin.describe_configs([_resource(topic)]))
        return {name: entry.value for name, entry in entries.items()}

    def alter_topic_config(self, topic: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        self._finish(self._admin.incremental_alter_configs([_resource(topic, [entry])]))

    def _describe(self, topic: str) -> Any:
        # Not list_topics, which creates the topic that it is asked for.
        return self._finish(self._admin.describe_topics(ck.TopicCollection([topic])))

    @contextmanager
    def _consumer(self) -> Any:
        consumer = ck.Consumer(
            {
                **self._common,
                "group.id": "unused",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": FETCH_WAIT_MS,
                "auto.offset.reset": "error",
            }
        )
        try:
            yield consumer
        finally:
            consumer.close()

    def _finish(self, futures: Mapping[Any, Future[Any]]) -> Any:
        (future,) = futures.values()
        with _refusals():
            return future.result(TIMEOUT_S)


@contextmanager
def _refusals() -> Any:
    try:
        yield
    except ck.KafkaException as error:
        raise _refusal(error.args[0]) from error


def _refusal(error: ck.KafkaError) -> Refused:
    # librdkafka hides the broker's code behind one of its own where it may not choose another offset itself.
    if error.code() == ck.KafkaError._AUTO_OFFSET_RESET and "Offset out of range" in error.str():
        return Refused(ErrorCode.OFFSET_OUT_OF_RANGE, error)
    return Refused(error.code(), error)


def _resource(topic: str, entries: list[ConfigEntry] | None = None) -> ConfigResource:
    return ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)


def _received(message: ck.Message) -> Received:
    return Received(
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        message.timestamp()[1],
        tuple(message.headers() or ()),
    )
