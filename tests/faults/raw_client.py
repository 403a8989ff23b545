"""Requests over one blocking connection: what an answer says is what the test gets, with no retry.

Stock clients hide the moments that matter here (which requests were under way, which answers came). Reading a whole
log checks every batch's checksum, and takes the records apart only then.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.apis import APIS
from flowstone.wire.codec import response_decoder
from flowstone.wire.frames import parse_response_header
from flowstone.wire.message import Message
from flowstone.wire.messages import generated as messages
from flowstone.wire.record_batch import decode_records, parse_header
from tests.support.wire_client import Client, frame, whole_batches

from .checker import ObservedLog

PRODUCE, FETCH, LIST_OFFSETS, METADATA, CREATE_TOPICS, DELETE_TOPICS, INIT_PRODUCER_ID = 0, 1, 2, 3, 19, 20, 22
INCREMENTAL_ALTER_CONFIGS = 44
OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP = 8, 9, 10, 11, 12, 13, 14
# The last versions that name topics rather than number them, and one group or coordinator rather than several.
VERSIONS = {
    PRODUCE: 12,
    FETCH: 12,
    LIST_OFFSETS: 7,
    OFFSET_COMMIT: 9,
    OFFSET_FETCH: 7,
    FIND_COORDINATOR: 3,
    JOIN_GROUP: 9,
    HEARTBEAT: 4,
    LEAVE_GROUP: 5,
    SYNC_GROUP: 5,
    METADATA: 9,
    CREATE_TOPICS: 7,
    DELETE_TOPICS: 5,
    INCREMENTAL_ALTER_CONFIGS: 1,
    INIT_PRODUCER_ID: 4,
}
TIMEOUT_S = 15
FETCH_BYTES = 8 << 20
EARLIEST, LATEST = -2, -1


class Refused(Exception):
    """The broker answered with an error code."""

    def __init__(self, code: int, message: str | None = None) -> None:
        self.code = ErrorCode(code)
        super().__init__(f"{self.code.name}: {message}")


class RawClient:
    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._client = Client((host, int(port)), TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def send(self, key: int, request: Message) -> None:
        self._client.send(frame(VERSIONS[key], request))

    def receive(self, key: int) -> Any:
        """The next answer. ConnectionError if there is none."""
        response = memoryview(self._client.receive())
        _, position = parse_response_header(response, 0, APIS[key].has_flexible_response_header(VERSIONS[key]))
        return response_decoder(key, VERSIONS[key])(response, position)

    def ask(self, key: int, request: Message) -> Any:
        self.send(key, request)
        return self.receive(key)

    # What tests ask for

    def create_topic(self, topic: str, partitions: int) -> None:
        wanted = messages.CreateTopicsRequestTopic(name=topic, num_partitions=partitions, replication_factor=1)
        answer = self.ask(CREATE_TOPICS, messages.CreateTopicsRequest(topics=[wanted])).topics[0]
        if answer.error_code:
            raise Refused(answer.error_code, answer.error_message)

    def new_producer_id(self) -> int:
        answer = self.ask(INIT_PRODUCER_ID, messages.InitProducerIdRequest(transactional_id=None))
        if answer.error_code:
            raise Refused(answer.error_code)
        producer_id: int = answer.producer_id
        return producer_id

    def send_produce(self, partition: TopicPartition, batch: bytes, acks: int) -> None:
        self.send(PRODUCE, produce_request(partition, batch, acks))

    def receive_produce(self) -> int:
        """The base offset. Refused: nothing of it is promised."""
        answer = self.receive(PRODUCE).responses[0].partition_responses[0]
        if answer.error_code:
            raise Refused(answer.error_code, answer.error_message)
        base_offset: int = answer.base_offset
        return base_offset

    def produce(self, partition: TopicPartition, batch: bytes, acks: int) -> int:
        self.send_produce(partition, batch, acks)
        return self.receive_produce()

    def offset_of(self, partition: TopicPartition, timestamp: int) -> int:
        wanted = messages.ListOffsetsRequestPartition(partition_index=partition.partition, timestamp=timestamp)
        topic = messages.ListOffsetsRequestTopic(name=partition.topic, partitions=[wanted])
        answer = self.ask(LIST_OFFSETS, messages.ListOffsetsRequest(replica_id=-1, topics=[topic]))
        found = answer.topics[0].partitions[0]
        if found.error_code:
            raise Refused(found.error_code)
        offset: int = found.offset
        return offset

    def fetch(self, partition: TopicPartition, offset: int) -> bytes:
        """Batches from the one that holds `offset` on, the last of which may be cut short; none at the end."""
        wanted = messages.FetchRequestPartition(
            partition=partition.partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES
        )
        topic = messages.FetchRequestTopic(topic=partition.topic, partitions=[wanted])
        request = messages.FetchRequest(max_bytes=FETCH_BYTES, topics=[topic])
        answer = self.ask(FETCH, request)
        if answer.error_code:
            raise Refused(answer.error_code)
        found = answer.responses[0].partitions[0]
        if found.error_code:
            raise Refused(found.error_code)
        return bytes(found.records)

    def read_log(self, partition: TopicPartition) -> ObservedLog:
        """The whole partition. CorruptBatch if a batch is not what its checksum says."""
        start_offset, end_offset = self.offset_of(partition, EARLIEST), self.offset_of(partition, LATEST)
        records: list[tuple[int, bytes]] = []
        next_offset = start_offset
        while next_offset < end_offset:
            data = self.fetch(partition, next_offset)
            before = next_offset
            for batch in whole_batches(data):
                records += [(each.offset, each.value or b"") for each in decode_records(batch)]
                next_offset = parse_header(batch).next_offset
            if next_offset == before:
                break  # the checker finds what is missing
        return ObservedLog(start_offset, end_offset, [each for each in records if each[0] >= start_offset])


def produce_request(partition: TopicPartition, batch: bytes, acks: int) -> messages.ProduceRequest:
    data = messages.ProduceRequestPartition(index=partition.partition, records=batch)
    topic = messages.ProduceRequestTopic(name=partition.topic, partition_data=[data])
    return messages.ProduceRequest(acks=acks, timeout_ms=TIMEOUT_S * 1000, topic_data=[topic])
