"""Dead letter queues (KIP-1191): copies of records that a share group cannot handle.

A record that is rejected, or delivered too often, is copied to the topic that its group names, before it is archived.
Both sides must agree: the group names the topic, and the topic allows it. The copy's headers say where the record is,
and why it is there; key and value are copied if the group says so. The copy goes to the partition with the record's
partition number, modulo the number of partitions.

A batch of copies is planned first: which records, for which partition, with which producer id and sequence. The caller
stores the plan, and only then sends it. Whoever sends a plan again, after a crash and on another broker too, sends a
batch that the queue's producer state recognizes (ADR 0027).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from enum import Enum, auto
from functools import partial

from flowstone.broker.coordinators.broker_peers import BrokerPeers
from flowstone.broker.loop.cold_reads import read_when_cached
from flowstone.broker.loop.workers import Workers
from flowstone.broker.sharing.letters.letter_records import letter_record
from flowstone.broker.sharing.letters.letter_search import LetterSearch
from flowstone.broker.sharing.reads.keyed_reads import read_spans
from flowstone.broker.sharing.spans import count_of, spans_of
from flowstone.client.errors import ClientError
from flowstone.cluster.image.cluster_image import TopicImage
from flowstone.cluster.metadata import Metadata
from flowstone.config import GroupSettings
from flowstone.coordinator.share.config import LETTER_RANGES_MAX
from flowstone.coordinator.share.records import LetterBatch, LetterRange
from flowstone.errors import ApiError, ErrorCode
from flowstone.ports.clock import Clock
from flowstone.promise import Promise
from flowstone.replication.partition import ACKS_ALL, Partition
from flowstone.replication.readers import Reader
from flowstone.replication.served_partitions import Partitions
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
)
from flowstone.wire.record_batch import Record, build_batch, decode_records, parse_header

logger = logging.getLogger(__name__)

ALLOWED = "errors.deadletterqueue.group.enable"
RETRY_PAUSE_S = 1.0
PRODUCE_TIMEOUT_S = 10.0
# Copies in one batch, the bytes of its keys and values (beyond the first record), and of the records read for them.
COPIES_MAX = LETTER_RANGES_MAX
COPIED_BYTES_MAX = READ_BYTES_MAX = 256 << 10

# The queue has these letters already, however long ago they were written.
_WRITTEN = frozenset((ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER))
_TOO_LARGE = frozenset((ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE))
# The queue has lost what the producer wrote before, so that these letters cannot be there.
_PRODUCER_LOST = frozenset(
    (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH)
)


class Sent(Enum):
    """The outcome of sending a batch of dead letters to its queue."""

    WRITTEN = auto()
    IMPOSSIBLE = auto()  # its topic is gone, or does not take such records
    PRODUCER_LOST = auto()  # another producer must write it


class DeadLetterQueues:
    def __init__(
        self,
        metadata: Metadata,
        partitions: Partitions,
        peers: BrokerPeers,
        clock: Clock,
        workers: Workers,
        producer_expiration_ms: int,
    ) -> None:
        """Create the object; `producer_expiration_ms` is how long brokers keep the state of an idle producer."""
        self._metadata, self._partitions, self._peers = metadata, partitions, peers
        self._clock, self._workers = clock, workers
        self._sure_for_ms = producer_expiration_ms // 2
        self._search = LetterSearch(partitions, peers, workers)

    async def plan(
        self,
        source: Partition,
        group_id: str,
        settings: GroupSettings,
        letters: Sequence[LetterRange],
        last: LetterBatch | None,
    ) -> LetterBatch | None:
        """Return the next batch, of the first of these letters, or None if there can be no copies.

        `last` is the batch before it, whose producer continues if the queue is the same.
        """
        name = settings.errors_deadletterqueue_topic_name
        topic = self._metadata.image.topics.get(name)
        if topic is None or topic.configs.get(ALLOWED) != "true":
            problem = "does not exist" if topic is None else f"has not {ALLOWED}=true"
            told = "group %s: the dead letter queue %s %s, so no copy is made of records of %s"
            logger.warning(told, group_id, name, problem, source.topic_partition)
            return None
        index = source.topic_partition.partition % len(topic.partitions)
        copied = first_of(letters, COPIES_MAX)
        if settings.errors_deadletterqueue_copy_record_enable:
            copied = first_of(copied, await self._count_that_fits(source, copied))
        now_ms = self._clock.time_ms()
        if last is not None and (last.topic_id, last.partition) == (topic.topic_id, index):
            return last._replace(time_ms=now_ms, ranges=copied)
        producer_id = await self._metadata.next_producer_id()
        return LetterBatch(topic.topic_id, index, producer_id, 0, now_ms, copied)

    async def with_new_producer(self, batch: LetterBatch) -> LetterBatch:
        """Return the batch as the first one of a producer that nobody has used."""
        return batch._replace(producer_id=await self._metadata.next_producer_id(), base_sequence=0)

    async def send(
        self, source: Partition, group_id: str, settings: GroupSettings, batch: LetterBatch, *, is_repeated: bool
    ) -> Sent:
        """Write a batch that is stored; return once it is durable in the queue, or can never be.

        `is_repeated` says that another attempt may have written it, maybe so long ago that the queue has forgotten the
        producer: then the queue is searched first.
        """
        with_data, time_ms = settings.errors_deadletterqueue_copy_record_enable, batch.time_ms
        while True:
            topic = self._topic(settings.errors_deadletterqueue_topic_name, batch.topic_id)
            if topic is None:
                return self._impossible(group_id, batch, "its topic was deleted")
            if is_repeated and self._clock.time_ms() - batch.time_ms >= self._sure_for_ms:
                is_written = await self._search.find(topic, batch)
                if is_written:
                    return Sent.WRITTEN
                if is_written is None:
                    await self._clock.sleep(RETRY_PAUSE_S)
                    continue
                is_repeated = False
            data = await self._encoded(source, group_id, batch, time_ms, with_data=with_data)
            code = await self._try(topic, batch.partition, data)
            if code in _WRITTEN:
                return Sent.WRITTEN
            if code in _PRODUCER_LOST:
                return Sent.PRODUCER_LOST
            if code in _TOO_LARGE and with_data:
                with_data = False
                continue
            if code in _TOO_LARGE or code is ErrorCode.INVALID_RECORD:
                return self._impossible(group_id, batch, code.name)
            if code is ErrorCode.INVALID_TIMESTAMP:
                time_ms = self._clock.time_ms()
            logger.warning("group %s: copies were not written to %s: %s", group_id, topic.name, code.name)
            await self._clock.sleep(RETRY_PAUSE_S)

    def _impossible(self, group_id: str, batch: LetterBatch, why: str) -> Sent:
        told = "group %s: there are no copies of %d records in the dead letter queue: %s"
        logger.warning(told, group_id, batch.letter_count, why)
        return Sent.IMPOSSIBLE

    def _topic(self, name: str, topic_id: bytes) -> TopicImage | None:
        topics = self._metadata.image.topics
        topic = topics.get(name)
        if topic is not None and topic.topic_id == topic_id:
            return topic
        return next((each for each in topics.values() if each.topic_id == topic_id), None)

    # Records

    async def _encoded(
        self, source: Partition, group_id: str, batch: LetterBatch, time_ms: int, *, with_data: bool
    ) -> bytes:
        originals: dict[int, Record] = {}
        if with_data:
            originals, _ = await self._originals(source, batch.ranges)
        where = source.topic_partition
        copies = [
            letter_record(delta, time_ms, where, group_id, offset, each, originals.get(offset))
            for delta, (offset, each) in enumerate(
                (offset, each) for each in batch.ranges for offset in range(each.first_offset, each.last_offset + 1)
            )
        ]
        return build_batch(copies, producer_id=batch.producer_id, producer_epoch=0, base_sequence=batch.base_sequence)

    async def _count_that_fits(self, source: Partition, letters: Sequence[LetterRange]) -> int:
        """Return how many of the records one batch can have."""
        originals, unread = await self._originals(source, letters)
        count = size_bytes = 0
        for each in letters:
            for offset in range(each.first_offset, each.last_offset + 1):
                size_bytes += _size_bytes(originals.get(offset))
                if count and (offset in unread or size_bytes > COPIED_BYTES_MAX):
                    return count
                count += 1
        return count

    async def _originals(
        self, source: Partition, letters: Sequence[LetterRange]
    ) -> tuple[dict[int, Record], frozenset[int]]:
        """Return the records by offset, as far as the log still has them, and the offsets that were not read.

        Reading ends with more than one batch of copies can have: otherwise many large records would be in memory.
        """
        found: dict[int, Record] = {}
        size_bytes = 0
        start = source.log.log_start_offset
        offsets = [offset for each in letters for offset in range(each.first_offset, each.last_offset + 1)]
        left = sorted(offset for offset in offsets if offset >= start)
        wanted = frozenset(left)
        while left and size_bytes <= COPIED_BYTES_MAX:
            read = partial(read_spans, source, Reader.UNCOMMITTED, None, spans_of(left), READ_BYTES_MAX)
            data, covered, missing = await read_when_cached(self._workers, source, read)
            at = 0
            while at < len(data):
                for record in _decoded(data, at):
                    if record.offset in wanted:
                        found[record.offset] = record
                        size_bytes += _size_bytes(record)
                at += parse_header(data, at).size_bytes
            done = count_of(covered) + count_of(missing)
            if not done:
                break
            left = left[done:]
        return found, frozenset(left)

    # Sending

    async def _try(self, topic: TopicImage, index: int, batch: bytes) -> ErrorCode:
        partition = self._partitions.find(TopicPartition(topic.name, index))
        try:
            if partition is not None and partition.is_leader:
                return await _append(partition, batch)
            produced = [ProduceRequestPartition(index=index, records=batch)]
            request = ProduceRequest(
                acks=ACKS_ALL,
                timeout_ms=int(PRODUCE_TIMEOUT_S * 1000),
                topic_data=[ProduceRequestTopic(name=topic.name, topic_id=topic.topic_id, partition_data=produced)],
            )
            leader = topic.partitions[index].leader
            response = await self._peers.ask(leader, request, ProduceResponse, PRODUCE_TIMEOUT_S)
            return ErrorCode(response.responses[0].partition_responses[0].error_code)
        except ApiError as error:
            return error.code
        except ClientError:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER


async def _append(partition: Partition, batch: bytes) -> ErrorCode:
    appended = partition.append(batch, ACKS_ALL)
    committed: Promise[ErrorCode] = Promise()
    partition.when_committed(appended.last_offset + 1, committed.set_result)
    return await committed


def _decoded(data: bytes, position: int) -> list[Record]:
    """Return the records of a batch; none of a damaged one, whose letters are only the headers."""
    try:
        return decode_records(data, position)
    except ApiError:
        return []


def _size_bytes(record: Record | None) -> int:
    return 0 if record is None else len(record.key or b"") + len(record.value or b"")


def first_of(letters: Sequence[LetterRange], count: int) -> tuple[LetterRange, ...]:
    """Return ranges of the first `count` records, the last range shortened if it must be."""
    found: list[LetterRange] = []
    for each in letters:
        if count <= 0:
            break
        last = min(each.last_offset, each.first_offset + count - 1)
        found.append(each._replace(last_offset=last))
        count -= last - each.first_offset + 1
    return tuple(found)


def without_first(letters: Sequence[LetterRange], count: int) -> list[LetterRange]:
    """Return ranges of all records but the first `count`."""
    left: list[LetterRange] = []
    for each in letters:
        skipped = min(count, each.last_offset - each.first_offset + 1)
        count -= skipped
        if each.first_offset + skipped <= each.last_offset:
            left.append(each._replace(first_offset=each.first_offset + skipped))
    return left
