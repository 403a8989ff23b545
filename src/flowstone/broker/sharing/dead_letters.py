"""Dead letter queues (KIP-1191): copies of records that a share group cannot handle.

A record that is rejected, or delivered too often, is copied to the topic that its group names, before it is archived.
Both sides must agree: the group names the topic, and the topic allows it. The copy's headers say where the record is,
and why it is there; key and value are copied if the group says so. The copy goes to the partition with the record's
partition number, modulo the number of partitions.

A topic that does not exist or does not allow it is logged, and the records are archived without a copy. Any other
failure is repeated until it succeeds. If the broker crashes between the copy and the change of the state, the record is
delivered again, and may be copied again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from flowstone.broker.coordinators.broker_peers import BrokerPeers
from flowstone.broker.loop.cold_reads import read_when_cached
from flowstone.broker.loop.workers import Workers
from flowstone.broker.sharing.keyed_reads import read_offsets
from flowstone.broker.sharing.share_changes import DeadLetters
from flowstone.client.errors import ClientError
from flowstone.cluster.image.cluster_image import TopicImage
from flowstone.cluster.metadata import Metadata
from flowstone.config import GroupSettings
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
PREFIX = "__dlq.errors."
RETRY_PAUSE_S = 1.0
PRODUCE_TIMEOUT_S = 10.0
# Copies in one batch, and the bytes of records that are read for them.
COPIES_MAX = 500
READ_BYTES_MAX = 4 << 20


class DeadLetterQueues:
    def __init__(
        self, metadata: Metadata, partitions: Partitions, peers: BrokerPeers, clock: Clock, workers: Workers
    ) -> None:
        self._metadata, self._partitions, self._peers = metadata, partitions, peers
        self._clock, self._workers = clock, workers

    async def copy(
        self, source: Partition, group_id: str, settings: GroupSettings, letters: Sequence[DeadLetters]
    ) -> None:
        """Return when the records have durable copies, or cannot have any."""
        name = settings.errors_deadletterqueue_topic_name
        problem = self._problem(name)
        if problem is not None:
            logger.warning("group %s: %s of %s", group_id, problem, source.topic_partition)
            return
        copies = await self._copies(
            source, group_id, letters, with_data=settings.errors_deadletterqueue_copy_record_enable
        )
        for begin in range(0, len(copies), COPIES_MAX):
            some = copies[begin : begin + COPIES_MAX]
            batch = build_batch([record._replace(offset=delta) for delta, record in enumerate(some)])
            await self._write(name, source.topic_partition.partition, batch, group_id)

    def _problem(self, name: str) -> str | None:
        """Return why there is no copy, or None if there can be one."""
        topic = self._metadata.image.topics.get(name)
        if topic is None:
            return f"the dead letter queue {name} does not exist, so no copy is made of records"
        if topic.configs.get(ALLOWED) != "true":
            return f"{ALLOWED} of the dead letter queue {name} is not true, so no copy is made of records"
        return None

    async def _copies(
        self, source: Partition, group_id: str, letters: Sequence[DeadLetters], *, with_data: bool
    ) -> list[Record]:
        originals: dict[int, Record] = {}
        if with_data:
            offsets = [offset for each in letters for offset in range(each.first, each.last + 1)]
            originals = await self._originals(source, sorted(offsets))
        topic, partition = source.topic_partition
        now_ms = self._clock.time_ms()
        copies = []
        for first, last, count, reason in letters:
            for offset in range(first, last + 1):
                told = {"topic": topic, "partition": partition, "offset": offset, "group": group_id}
                told |= {"delivery.count": count, "message": reason}
                history = tuple((PREFIX + name, str(value).encode()) for name, value in told.items())
                original = originals.get(offset, Record(offset, now_ms, None, None))
                headers = (*original.headers, *history)
                copies.append(Record(offset, now_ms, original.key, original.value, headers))
        return copies

    async def _originals(self, source: Partition, offsets: Sequence[int]) -> dict[int, Record]:
        found: dict[int, Record] = {}
        left = list(offsets)
        while left:
            read = partial(read_offsets, source, Reader.UNCOMMITTED, left, READ_BYTES_MAX)
            data, covered, missing = await read_when_cached(self._workers, source, read)
            at = 0
            while at < len(data):
                found.update((record.offset, record) for record in decode_records(data, at))
                at += parse_header(data, at).size_bytes
            done = len(covered) + len(missing)
            if not done:
                break
            left = left[done:]
        return {offset: found[offset] for offset in offsets if offset in found}

    async def _write(self, name: str, index: int, batch: bytes, group_id: str) -> None:
        while True:
            topic = self._metadata.image.topics.get(name)
            if topic is None:
                return
            code = await self._try(topic, index % len(topic.partitions), batch)
            if code is ErrorCode.NONE:
                return
            logger.warning("group %s: a copy was not written to %s: %s", group_id, name, code.name)
            await self._clock.sleep(RETRY_PAUSE_S)

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
    appended = partition.append(batch, ACKS_ALL, is_own=True)
    committed: Promise[ErrorCode] = Promise()
    partition.when_committed(appended.last_offset + 1, committed.set_result)
    return await committed
