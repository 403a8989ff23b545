"""A consumer of one partition, from its beginning, without a group; and how a whole log is read."""

from __future__ import annotations

from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    FetchResponse,
    FetchResponsePartition,
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
    ListOffsetsResponse,
)
from flowstone.wire.record_batch import CorruptBatch, decode_records
from tests.faults.checker import ObservedLog
from tests.support.wire_client import whole_batches

from .client import Client, Unanswered
from .history import ClusterHistory

FETCH_BYTES = 48 << 10
FETCH_WAIT_MS = 500
LATEST, EARLIEST = -1, -2
CONSUMER_REPLICA_ID = -1
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
PAUSE_S_MAX = 0.05
# After so many polls the end is asked for, too.
END_ASKED_SHARE = 0.1


class PartitionFetches:
    """Fetches of one partition: from its leader, or from the replica that the leader prefers for the reader's rack."""

    def __init__(
        self,
        client: Client,
        partition: TopicPartition,
        rack: str = "",
        isolation_level: int = READ_UNCOMMITTED,
        node_id: int | None = None,
    ) -> None:
        """With a node id they are asked of that replica alone."""
        self.client, self._partition, self._rack = client, partition, rack
        self._isolation_level, self._node_id = isolation_level, node_id
        self._near: int | None = None

    async def fetch(self, position: int) -> tuple[ErrorCode, FetchResponsePartition, bool]:
        """Return the code, the answer, and whether it is from the leader. Raises Unanswered."""
        answer = await self._fetch(position)
        code = ErrorCode(answer.error_code)
        near, self._near = self._near, None
        if code is ErrorCode.NONE:
            self._near = answer.preferred_read_replica if answer.preferred_read_replica >= 0 else near
        else:
            self.client.forget_leader(self._partition)
        return code, answer, near is None and self._node_id is None

    async def _fetch(self, position: int) -> FetchResponsePartition:
        topic, index = self._partition
        await self.client.leader(self._partition)  # the topic's id, and the epoch
        wanted = FetchRequestPartition(
            partition=index,
            fetch_offset=position,
            partition_max_bytes=FETCH_BYTES,
            current_leader_epoch=self.client.leader_epoch(self._partition),
        )
        topics = [FetchRequestTopic(topic=topic, topic_id=self.client.topic_ids[topic], partitions=[wanted])]
        request = FetchRequest(
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            isolation_level=self._isolation_level,
            session_epoch=-1,
            topics=topics,
            rack_id=self._rack,
        )
        answer = await self._ask_replica(request)
        if answer.error_code:
            raise Unanswered(ErrorCode(answer.error_code).name)
        return answer.responses[0].partitions[0]

    async def _ask_replica(self, request: FetchRequest) -> FetchResponse:
        if self._node_id is not None:
            return await self.client.ask_node(self._node_id, request, FetchResponse)
        if self._near is None:
            return await self.client.ask_leader(self._partition, request, FetchResponse)
        near, self._near = self._near, None
        answer = await self.client.ask_node(near, request, FetchResponse)
        self._near = near
        return answer

    async def end_offset(self) -> int:
        """Return the end as the leader tells it, or the last stable offset to a reader of committed data."""
        return await self._offset_at(LATEST)

    async def start_offset(self) -> int:
        """Return the log start offset as the leader tells it."""
        return await self._offset_at(EARLIEST)

    async def _offset_at(self, timestamp: int) -> int:
        topic, index = self._partition
        epoch = self.client.leader_epoch(self._partition)
        wanted = ListOffsetsRequestPartition(partition_index=index, timestamp=timestamp, current_leader_epoch=epoch)
        topics = [ListOffsetsRequestTopic(name=topic, partitions=[wanted])]
        request = ListOffsetsRequest(
            replica_id=CONSUMER_REPLICA_ID, isolation_level=self._isolation_level, topics=topics
        )
        answer = await self.client.ask_leader(self._partition, request, ListOffsetsResponse)
        found = answer.topics[0].partitions[0]
        if found.error_code:
            self.client.forget_leader(self._partition)
            raise Unanswered(ErrorCode(found.error_code).name)
        return found.offset


class Consumer:
    def __init__(self, client: Client, history: ClusterHistory, partition: TopicPartition, rack: str = "") -> None:
        """With a rack it reads from the replica there, if the leader says so."""
        self.client, self._history, self._partition = client, history, partition
        self._fetches = PartitionFetches(client, partition, rack)
        self.position = self._end_told = 0
        self.is_stopping = False

    async def run(self) -> None:
        while not self.is_stopping:
            try:
                for offset, value in await self.poll():
                    self._history.see(self._partition, offset, value)
                    self._history.seen_count += 1
                if self.client.random.random() < END_ASKED_SHARE:
                    await self.end_offset()
            except Unanswered:
                await self.client.back_off()
            await self.client.clock.sleep(self.client.random.uniform(0, PAUSE_S_MAX))

    async def poll(self) -> list[tuple[int, bytes]]:
        """The records at the position and after it, each once; none if there are none now."""
        code, answer, is_from_leader = await self._fetches.fetch(self.position)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and is_from_leader:
            self._history.note("taken back", self._partition, self.position, "the position is out of range")
            self.is_stopping = True
        if code is not ErrorCode.NONE:
            raise Unanswered(code.name)
        assert isinstance(answer.records, bytes | memoryview | None)
        return self._take(bytes(answer.records or b""))

    def _take(self, data: bytes) -> list[tuple[int, bytes]]:
        records = []
        try:
            for batch in whole_batches(data):
                for each in decode_records(batch):
                    if each.offset < self.position:
                        continue
                    if each.offset > self.position:
                        self._history.note("poll skip", self._partition, each.offset, f"{self.position} was due")
                    records.append((each.offset, each.value or b""))
                    self.position = each.offset + 1
        except CorruptBatch as error:
            self._history.note("corrupt batch", self._partition, self.position, str(error))
            self.is_stopping = True
        return records

    async def end_offset(self) -> int:
        """Never before what this consumer has read, or was told is the end."""
        end_offset = await self._fetches.end_offset()
        if end_offset < max(self._end_told, self.position):
            detail = f"{self._end_told} was the end, and {self.position} is the position"
            self._history.note("end went back", self._partition, end_offset, detail)
        self._end_told = end_offset
        return end_offset

    async def read_log(self) -> ObservedLog:
        """The whole partition as it is now."""
        self.position = 0
        end_offset, records = await self.end_offset(), []
        while self.position < end_offset and not self.is_stopping:
            before = self.position
            records += await self.poll()
            if self.position == before:
                break  # the checker says what is missing
        return ObservedLog(0, end_offset, records)
