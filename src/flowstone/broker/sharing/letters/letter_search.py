"""Searches a dead letter queue for a batch that may have been written long ago.

Brokers forget a producer that has written nothing for `producer.id.expiration.ms`. After an outage of that length its
sequence numbers prove nothing, so the queue itself is read: the headers of all batches since the letters' time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from flowstone.broker.coordinators.broker_peers import BrokerPeers
from flowstone.broker.loop.cold_reads import read_when_cached
from flowstone.broker.loop.workers import Workers
from flowstone.client.errors import ClientError
from flowstone.cluster.image.cluster_image import TopicImage
from flowstone.coordinator.share.records import LetterBatch
from flowstone.errors import ApiError, ErrorCode
from flowstone.log.segments.cached_reads import read_cached
from flowstone.replication.partition import Partition
from flowstone.replication.readers import Reader
from flowstone.replication.served_partitions import Partitions
from flowstone.types import Bytes, TopicPartition
from flowstone.wire import messages as wire
from flowstone.wire.record_batch import HEADER_BYTES, parse_header

# The clock of the queue's leader may be so far behind the one that has stamped the letters.
SKEW_MAX_MS = 3_600_000
READ_BYTES_MAX = 1 << 20
REQUEST_TIMEOUT_S = 10.0
REQUEST_WAIT_MS = 500
# As consumers send it, and in place of an offset if no record is as late as asked for. The client's constants are not
# imported: with them every broker would load the client.
CONSUMER_REPLICA_ID, NO_OFFSET = -1, -1

# Reads whole batches from an offset on: empty bytes at the end.
Read = Callable[[int], Awaitable[Bytes]]


class LetterSearch:
    def __init__(self, partitions: Partitions, peers: BrokerPeers, workers: Workers) -> None:
        self._partitions, self._peers, self._workers = partitions, peers, workers

    async def find(self, topic: TopicImage, batch: LetterBatch) -> bool | None:
        """Return whether the queue has the batch, as far as it is committed; None if that is not known now."""
        since_ms = max(batch.time_ms - SKEW_MAX_MS, 0)
        local = self._partitions.find(TopicPartition(topic.name, batch.partition))
        try:
            if local is not None and local.is_leader:
                start = await read_when_cached(self._workers, local, partial(_start, local, since_ms))
                return await _has(partial(self._read_local, local), start, batch)
            start = await self._remote_start(topic, batch, since_ms)
            return await _has(partial(self._read_remote, topic, batch.partition), start, batch)
        except (ApiError, ClientError):
            return None

    async def _read_local(self, partition: Partition, offset: int) -> Bytes:
        def read() -> Bytes:
            local = partition.local
            end_offset = local.visible_end(Reader.UNCOMMITTED)
            if offset >= end_offset:
                return b""
            found = local.read(offset, READ_BYTES_MAX, end_offset, at_least_one=True)
            return b"" if found is None else found.read_cached()

        return await read_when_cached(self._workers, partition, read)

    async def _remote_start(self, topic: TopicImage, batch: LetterBatch, since_ms: int) -> int | None:
        wanted = wire.ListOffsetsRequestPartition(partition_index=batch.partition, timestamp=since_ms)
        topics = [wire.ListOffsetsRequestTopic(name=topic.name, partitions=[wanted])]
        request = wire.ListOffsetsRequest(replica_id=CONSUMER_REPLICA_ID, topics=topics)
        leader = topic.partitions[batch.partition].leader
        response = await self._peers.ask(leader, request, wire.ListOffsetsResponse, REQUEST_TIMEOUT_S)
        found = response.topics[0].partitions[0]
        _check(found.error_code)
        return None if found.offset == NO_OFFSET else found.offset

    async def _read_remote(self, topic: TopicImage, index: int, offset: int) -> Bytes:
        wanted = wire.FetchRequestPartition(partition=index, fetch_offset=offset, partition_max_bytes=READ_BYTES_MAX)
        request = wire.FetchRequest(
            max_wait_ms=REQUEST_WAIT_MS,
            min_bytes=1,
            topics=[wire.FetchRequestTopic(topic=topic.name, topic_id=topic.topic_id, partitions=[wanted])],
        )
        leader = topic.partitions[index].leader
        response = await self._peers.ask(leader, request, wire.FetchResponse, REQUEST_TIMEOUT_S)
        _check(response.error_code)
        found = response.responses[0].partitions[0] if response.responses else None
        if found is None:
            return b""
        _check(found.error_code)
        assert found.records is None or isinstance(found.records, bytes | bytearray | memoryview)
        return found.records or b""


def _start(partition: Partition, since_ms: int) -> int | None:
    """Return the offset of the first batch with a record since then. Raises NotCached."""
    found = partition.log.find_timestamp(since_ms)
    if found is None:
        return None
    header = read_cached(found.file, found.position, min(HEADER_BYTES, found.count))
    return parse_header(header).base_offset


async def _has(read: Read, start: int | None, batch: LetterBatch) -> bool:
    """Return whether one of the batches from `start` on has the letters' producer and sequence."""
    if start is None:
        return False
    offset = start
    while True:
        data = await read(offset)
        at, before = 0, offset
        while len(data) - at >= HEADER_BYTES:
            header = parse_header(data, at)
            at += header.size_bytes
            if at > len(data):
                break
            offset = max(offset, header.last_offset + 1)
            if (header.producer_id, header.base_sequence) == (batch.producer_id, batch.base_sequence):
                return True
        if offset == before:
            return False


def _check(code: int) -> None:
    if code:
        raise ApiError(ErrorCode(code))
