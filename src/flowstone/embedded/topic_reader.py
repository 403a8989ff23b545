"""Reader of a topic's committed records directly from the partitions of a broker in this process.

It uses no client and no connection, so injected faults do not affect it. It collects batches on the broker's event
loop; the caller decodes them in its own thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from flowstone.broker.loop.cold_reads import read_when_cached
from flowstone.broker.requests.context import Services
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.records import MetadataRecord
from flowstone.embedded.change_signal import ChangeSignal
from flowstone.embedded.host import Record
from flowstone.errors import ApiError, ErrorCode
from flowstone.log.segments.cached_reads import LogSlice
from flowstone.replication.partition import Partition
from flowstone.replication.readers import Reader
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import HEADER_BYTES, BatchHeader, decode_records, parse_header

if TYPE_CHECKING:
    from flowstone.arrow.transactions import AbortedTransactions

READ_BYTES = 1 << 20


class Batches(NamedTuple):
    """Whole batches of one partition; records below `first_offset` have been deleted and must be ignored."""

    partition: int
    first_offset: int
    data: bytes
    # Producer id and first offset of each aborted transaction among them; None for a read_uncommitted reader.
    aborted: Sequence[tuple[int, int]] | None


class TopicReader:
    """Reader of topics; lives on the broker's event loop."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._waiting: set[ChangeSignal] = set()
        services.metadata.on_change(self._changed)

    async def read(self, topic: str, reader: Reader) -> list[Batches]:
        return await self._read(self._known(topic), reader)

    async def read_led(self, topic: str, reader: Reader) -> list[Batches]:
        """Return the batches of the partitions that this broker of a cluster leads."""
        partitions = self._services.partitions
        found = (partitions.find(TopicPartition(topic, index)) for index in range(self._count_partitions(topic)))
        return await self._read([each for each in found if each is not None and each.is_leader], reader)

    async def wait(self, topic: str, count: int, reader: Reader) -> int:
        """Wait until the topic has `count` offsets that `reader` may see; return how many it has."""
        signal = ChangeSignal()
        self._waiting.add(signal)
        watched: set[Partition] = set()
        try:
            while (found := self.count(topic, reader)) is None or found < count:
                for partition in self._partitions(topic) or ():
                    watched.add(partition)
                    partition.local.watchers(reader).watch(signal)
                await signal.changed()
            return found
        finally:
            self._waiting.discard(signal)
            for partition in watched:
                partition.local.watchers(reader).unwatch(signal)

    def count(self, topic: str, reader: Reader) -> int | None:
        """Return the number of offsets that `reader` may see, or None if the topic does not exist."""
        partitions = self._partitions(topic)
        if partitions is None:
            return None
        return sum(each.local.visible_end(reader) - each.log.log_start_offset for each in partitions)

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

    async def _read(self, partitions: Sequence[Partition], reader: Reader) -> list[Batches]:
        return [batches for partition in partitions async for batches in self._read_partition(partition, reader)]

    def _partitions(self, topic: str) -> list[Partition] | None:
        image = self._services.metadata.image.topics.get(topic)
        if image is None:
            return None
        return [self._services.partitions.get(topic, index) for index in range(len(image.partitions))]

    async def _read_partition(self, partition: Partition, reader: Reader) -> AsyncIterator[Batches]:
        workers = self._services.workers
        first_offset = next_offset = partition.log.log_start_offset
        while next_offset < partition.local.visible_end(reader):
            found = await read_when_cached(workers, partition, partial(_read_slice, partition, next_offset, reader))
            if found is None:
                return
            records, aborted = found
            data = await workers.read(records.read)
            *_, (whole_bytes, header) = _whole_batches(data)
            next_offset = header.next_offset
            yield Batches(partition.topic_partition.partition, first_offset, data[:whole_bytes], aborted)

    def _changed(self, before: ClusterImage, after: ClusterImage, records: Sequence[MetadataRecord]) -> None:
        for signal in self._waiting:
            signal.interrupted()


def _unknown(topic: str) -> ApiError:
    return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic!r}")


def _read_slice(
    partition: Partition, offset: int, reader: Reader
) -> tuple[LogSlice, Sequence[tuple[int, int]] | None] | None:
    """Return records from `offset` on, with the aborted transactions among them. Raises NotCached."""
    end_offset = partition.local.visible_end(reader)
    records = partition.local.read(offset, READ_BYTES, end_offset, at_least_one=True)
    if records is None:
        return None
    if reader is Reader.UNCOMMITTED:
        return records, None
    return records, partition.local.aborted_transactions(offset, end_offset, records)


def decode(batches: Sequence[Batches]) -> list[Record]:
    """Return the records of the batches, without end markers, and for a committed reader without aborted ones."""
    records = []
    aborted: dict[int, AbortedTransactions] = {}
    for found in batches:
        partition, first_offset, data, _ = found
        of_partition = _add_aborted(aborted, found)
        position = 0
        for end, header in _whole_batches(data):
            left_out = header.is_control if of_partition is None else of_partition.leaves_out(header)
            if not left_out:
                records += [
                    Record(partition, each.offset, each.timestamp, each.key, each.value, each.headers)
                    for each in decode_records(data, position)
                    if each.offset >= first_offset
                ]
            position = end
    return records


def _add_aborted(aborted: dict[int, AbortedTransactions], found: Batches) -> AbortedTransactions | None:
    """Add the aborted transactions among the batches to those of their partition, and return these."""
    if found.aborted is None:
        return None
    from flowstone.arrow.transactions import AbortedTransactions  # loaded only by tests that use transactions

    of_partition = aborted.setdefault(found.partition, AbortedTransactions())
    of_partition.add(found.aborted)
    return of_partition


def _whole_batches(data: bytes) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the end and the header of each whole batch; an incomplete last batch is omitted."""
    position = 0
    while len(data) - position >= HEADER_BYTES:
        header = parse_header(data, position)
        position += header.size_bytes
        if position > len(data):
            return
        yield position, header
