"""Reader of a topic's committed records directly from the partitions of a broker in this process.

It uses no client and no connection, so injected faults do not affect it. It collects batches on the broker's event
loop; the caller decodes them in its own thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from flowstone.broker.loop.cold_reads import read_when_cached
from flowstone.broker.requests.context import Services
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.records import MetadataRecord
from flowstone.embedded.change_signal import ChangeSignal
from flowstone.embedded.host import Record
from flowstone.errors import ApiError, ErrorCode
from flowstone.replication.partition import Partition
from flowstone.replication.readers import Reader
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import HEADER_BYTES, decode_records, parse_header

READ_BYTES = 1 << 20


class Batches(NamedTuple):
    """Whole batches of one partition; records below `first_offset` have been deleted and must be ignored."""

    partition: int
    first_offset: int
    data: bytes


class TopicReader:
    """Reader of topics; lives on the broker's event loop."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._waiting: set[ChangeSignal] = set()
        services.metadata.on_change(self._changed)

    async def read(self, topic: str) -> list[Batches]:
        return await self._read(self._known(topic))

    async def read_led(self, topic: str) -> list[Batches]:
        """Return the batches of the partitions that this broker of a cluster leads."""
        partitions = self._services.partitions
        found = (partitions.find(TopicPartition(topic, index)) for index in range(self._count_partitions(topic)))
        return await self._read([each for each in found if each is not None and each.is_leader])

    async def wait(self, topic: str, count: int) -> int:
        """Wait until the topic has `count` offsets; return how many it has."""
        signal = ChangeSignal()
        self._waiting.add(signal)
        watched: set[Partition] = set()
        try:
            while (found := self.count(topic)) is None or found < count:
                for partition in self._partitions(topic) or ():
                    watched.add(partition)
                    partition.local.watchers(Reader.UNCOMMITTED).watch(signal)
                await signal.changed()
            return found
        finally:
            self._waiting.discard(signal)
            for partition in watched:
                partition.local.watchers(Reader.UNCOMMITTED).unwatch(signal)

    def count(self, topic: str) -> int | None:
        """Return the number of offsets that a consumer could read, or None if the topic does not exist."""
        partitions = self._partitions(topic)
        if partitions is None:
            return None
        return sum(each.high_watermark.offset - each.log.log_start_offset for each in partitions)

    def _known(self, topic: str) -> list[Partition]:
        partitions = self._partitions(topic)
        if partitions is None:
            raise _unknown(topic)
        return partitions

    def _count_partitions(self, topic: str) -> int:
        image = self._services.metadata.image.topics.get(topic)
        if image is None:
            raise _unknown(topic)
        return len(image.partitions)

    async def _read(self, partitions: Sequence[Partition]) -> list[Batches]:
        return [batches for partition in partitions async for batches in self._read_partition(partition)]

    def _partitions(self, topic: str) -> list[Partition] | None:
        image = self._services.metadata.image.topics.get(topic)
        if image is None:
            return None
        return [self._services.partitions.get(topic, index) for index in range(len(image.partitions))]

    async def _read_partition(self, partition: Partition) -> AsyncIterator[Batches]:
        workers = self._services.workers
        first_offset = next_offset = partition.log.log_start_offset
        while next_offset < partition.high_watermark.offset:
            read = partial(partition.local.read_as, Reader.UNCOMMITTED, next_offset, READ_BYTES, at_least_one=True)
            found = await read_when_cached(workers, partition, read)
            if found is None:
                return
            data = await workers.read(found.read)
            *_, (whole_bytes, next_offset) = _whole_batches(data)
            yield Batches(partition.topic_partition.partition, first_offset, data[:whole_bytes])

    def _changed(self, before: ClusterImage, after: ClusterImage, records: Sequence[MetadataRecord]) -> None:
        for signal in self._waiting:
            signal.interrupted()


def _unknown(topic: str) -> ApiError:
    return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic!r}")


def decode(batches: Sequence[Batches]) -> list[Record]:
    records = []
    for partition, first_offset, data in batches:
        position = 0
        for end, _ in _whole_batches(data):
            records += [
                Record(partition, each.offset, each.timestamp, each.key, each.value, each.headers)
                for each in decode_records(data, position)
                if each.offset >= first_offset
            ]
            position = end
    return records


def _whole_batches(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the end of each whole batch and the offset after it; an incomplete last batch is omitted."""
    position = 0
    while len(data) - position >= HEADER_BYTES:
        header = parse_header(data, position)
        position += header.size_bytes
        if position > len(data):
            return
        yield position, header.next_offset
