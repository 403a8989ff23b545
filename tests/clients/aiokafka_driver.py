"""aiokafka: the oldest versions in use. It runs on an event loop that turns only while a call lasts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import BrokerResponseError

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

T = TypeVar("T")


class AiokafkaDriver:
    name = "aiokafka"
    codecs = (NO_COMPRESSION, "gzip", "snappy", "lz4", "zstd")

    def __init__(self, bootstrap: str) -> None:
        self._common = {"bootstrap_servers": bootstrap}
        self._runner = asyncio.Runner()

    def close(self) -> None:
        self._runner.close()

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

        async def send() -> list[tuple[int, int]]:
            producer = AIOKafkaProducer(
                **self._common,
                acks="all" if acks == "all" else int(acks),
                compression_type=None if compression == NO_COMPRESSION else compression,
                enable_idempotence=sends_once(acks, idempotent=idempotent),
                transactional_id=transactional_id,
                linger_ms=5,
                request_timeout_ms=TIMEOUT_MS,
                **sizes,
            )
            try:
                await producer.start()
                futures = [
                    await producer.send(
                        topic,
                        value=record.value,
                        key=record.key,
                        partition=record.partition,
                        timestamp_ms=record.timestamp_ms,
                        headers=list(record.headers),
                    )
                    for record in records
                ]
                done = [await future for future in futures]
            finally:
                await producer.stop()
            # For acks=0 it has no answer to give at all.
            return [(metadata.partition, metadata.offset) for metadata in done if metadata is not None]

        return self._run(send())

    def consume(self, topic: str, partition: int, offset: int, count: int) -> list[Received]:
        async def read(consumer: AIOKafkaConsumer) -> list[Received]:
            consumer.seek(TopicPartition(topic, partition), offset)
            return await _read(consumer, count)

        return self._consuming(topic, partition, read)

    def consume_from_beginning(self, topic: str, partition: int, count: int) -> list[Received]:
        async def read(consumer: AIOKafkaConsumer) -> list[Received]:
            await consumer.seek_to_beginning()
            return await _read(consumer, count)

        return self._consuming(topic, partition, read)

    def position_at_end(self, topic: str, partition: int) -> int:
        async def look(consumer: AIOKafkaConsumer) -> int:
            await consumer.seek_to_end()
            return await consumer.position(TopicPartition(topic, partition))

        return self._consuming(topic, partition, look)

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        wanted = TopicPartition(topic, partition)

        async def look(consumer: AIOKafkaConsumer) -> tuple[int, int]:
            first, end = await consumer.beginning_offsets([wanted]), await consumer.end_offsets([wanted])
            return first[wanted], end[wanted]

        return self._consuming(topic, partition, look)

    def offset_for_time(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        wanted = TopicPartition(topic, partition)

        async def look(consumer: AIOKafkaConsumer) -> int | None:
            found = (await consumer.offsets_for_times({wanted: timestamp_ms}))[wanted]
            return None if found is None else found.offset

        return self._consuming(topic, partition, look)

    def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        wanted = NewTopic(topic, partitions, REPLICATION_FACTOR, topic_configs=dict(configs or {}))
        _check(self._administer(lambda admin: admin.create_topics([wanted])).topic_errors)

    def delete_topic(self, topic: str) -> None:
        _check(self._administer(lambda admin: admin.delete_topics([topic])).topic_error_codes)

    def topics(self) -> set[str]:
        return set(self._administer(lambda admin: admin.list_topics()))

    def partition_count(self, topic: str) -> int:
        (description,) = self._administer(lambda admin: admin.describe_topics([topic]))
        if description["error_code"]:
            raise Refused(description["error_code"])
        return len(description["partitions"])

    def create_partitions(self, topic: str, total: int) -> None:
        self._administer(lambda admin: admin.create_partitions({topic: NewPartitions(total)}))

    def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        wanted = TopicPartition(topic, partition)
        return self._administer(lambda admin: admin.delete_records({wanted: RecordsToDelete(before_offset)}))[wanted]

    def topic_configs(self, topic: str) -> dict[str, str]:
        (response,) = self._administer(
            lambda admin: admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        )
        ((code, message, _kind, _name, entries, *_),) = response.resources
        if code:
            raise Refused(code, message)
        return {name: value for name, value, *_ in entries}

    def alter_topic_config(self, topic: str, name: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={name: value})
        (response,) = self._administer(lambda admin: admin.alter_configs([resource]))
        ((code, message, *_),) = response.resources
        if code:
            raise Refused(code, message)

    def _consuming(self, topic: str, partition: int, use: Callable[[AIOKafkaConsumer], Awaitable[T]]) -> T:
        async def run() -> T:
            consumer = AIOKafkaConsumer(
                **self._common, fetch_max_wait_ms=FETCH_WAIT_MS, enable_auto_commit=False, auto_offset_reset="none"
            )
            await consumer.start()
            try:
                consumer.assign([TopicPartition(topic, partition)])
                return await use(consumer)
            finally:
                await consumer.stop()

        return self._run(run())

    def _administer(self, use: Callable[[AIOKafkaAdminClient], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            async with _admin(self._common) as admin:
                return await use(admin)

        return self._run(run())

    def _run(self, work: Any) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(TIMEOUT_S):
                return await work

        try:
            return self._runner.run(bounded())
        except BrokerResponseError as error:
            raise Refused(error.errno, error) from error


@asynccontextmanager
async def _admin(common: Mapping[str, Any]) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(**common)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def _read(consumer: AIOKafkaConsumer, count: int) -> list[Received]:
    records: list[Received] = []
    while len(records) < count:
        each = await consumer.getone()
        records.append(Received(each.partition, each.offset, each.key, each.value, each.timestamp, tuple(each.headers)))
    return records


def _check(results: Sequence[tuple[Any, ...]]) -> None:
    for _topic, code, *message in results:
        if code:
            raise Refused(code, message)
