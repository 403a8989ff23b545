"""A client that sends exactly the bytes it is told to, and reads what comes back with the broker's own codec.

The codec is held against other implementations elsewhere; here it only saves writing frames by hand.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from flowstone.wire.apis import APIS
from flowstone.wire.codec import request_encoder, response_decoder
from flowstone.wire.frames import encode_request_header, parse_response_header
from flowstone.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
)
from flowstone.wire.record_batch import (
    HEADER_BYTES,
    CorruptBatch,
    Record,
    build_batch,
    checksum_matches,
    parse_header,
)

CLIENT_ID = "wire-client"
LATEST = -1
TIMEOUT_MS = 10_000
CLOSED_WITHIN_S = 5.0  # at once, on a busy machine


class Closed(ConnectionError):
    """The broker closed the connection."""


class Client:
    def __init__(self, address: tuple[str, int], timeout_s: float = 10.0) -> None:
        self.socket = socket.create_connection(address, timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (ConnectionResetError, BrokenPipeError) as error:
            raise Closed from error

    def receive(self) -> bytes:
        """One response without its size."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def ask(self, version: int, request: Any) -> Any:
        key = api_key(request)
        self._correlation_id += 1
        self.send(frame(version, request, self._correlation_id))
        response = memoryview(self.receive())
        correlation_id, at = parse_response_header(response, 0, APIS[key].has_flexible_response_header(version))
        assert correlation_id == self._correlation_id
        return response_decoder(key, version)(response, at)

    def closed_after_s(self, limit_s: float = CLOSED_WITHIN_S) -> float:
        """Seconds until the broker closes, without a byte of an answer. Fails if it takes longer than the limit."""
        started = time.monotonic()
        self.socket.settimeout(limit_s)
        try:
            data = self.socket.recv(1)
        except ConnectionResetError:
            data = b""
        except TimeoutError:
            raise AssertionError(f"still open after {limit_s} s") from None
        assert data == b"", "an answer instead of a closed connection"
        return time.monotonic() - started

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size:
            try:
                part = self.socket.recv(min(size, 1 << 20))
            except ConnectionResetError as error:
                raise Closed from error
            if not part:
                raise Closed
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    # The few requests that most tests need

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> int:
        entries = [CreateTopicsRequestConfig(name=key.replace("_", "."), value=each) for key, each in configs.items()]
        topic = CreateTopicsRequestTopic(name=name, num_partitions=partitions, replication_factor=1, configs=entries)
        return int(self.ask(5, CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)).topics[0].error_code)

    def produce(self, topic: str, records: bytes | None, acks: int = -1, partition: int = 0) -> Any:
        """The partition's answer."""
        return self.ask(9, produce_request(topic, records, acks, partition)).responses[0].partition_responses[0]

    def fetch(self, topic: str, offset: int, **options: Any) -> Any:
        return self.ask(11, fetch_request(topic, offset, **options)).responses[0].partitions[0]

    def end_offset(self, topic: str) -> int:
        partition = ListOffsetsRequestPartition(partition_index=0, timestamp=LATEST)
        topics = [ListOffsetsRequestTopic(name=topic, partitions=[partition])]
        answer = self.ask(5, ListOffsetsRequest(replica_id=-1, topics=topics)).topics[0].partitions[0]
        assert answer.error_code == 0
        return int(answer.offset)


def api_key(request: Any) -> int:
    return next(api.key for api in APIS.values() if isinstance(request, api.request))


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def frame(version: int, request: Any, correlation_id: int = 1) -> bytes:
    key = api_key(request)
    body = b"".join(request_encoder(key, version)(request))  # type: ignore[arg-type]
    return framed(encode_request_header(key, version, correlation_id, CLIENT_ID) + body)


def produce_request(topic: str, records: bytes | None, acks: int = -1, partition: int = 0) -> ProduceRequest:
    data = [ProduceRequestPartition(index=partition, records=records)]
    topics = [ProduceRequestTopic(name=topic, partition_data=data)]
    return ProduceRequest(acks=acks, timeout_ms=TIMEOUT_MS, topic_data=topics)


def fetch_request(
    topic: str, offset: int, max_wait_ms: int = 0, min_bytes: int = 1, max_bytes: int = 1 << 20, **more: Any
) -> FetchRequest:
    partition = FetchRequestPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    topics = [FetchRequestTopic(topic=topic, partitions=[partition])]
    return FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=min_bytes, max_bytes=max_bytes, topics=topics, **{"session_epoch": -1} | more
    )


def batch_of(*values: bytes, **options: Any) -> bytes:
    now_ms = int(time.time() * 1000)
    return build_batch([Record(index, now_ms, b"k", value) for index, value in enumerate(values)], **options)


def whole_batches(data: bytes) -> Iterator[bytes]:
    """Each batch with its checksum checked; what is cut short at the end is left out, as clients do."""
    position = 0
    while position + HEADER_BYTES <= len(data):
        header = parse_header(data, position)
        if position + header.size_bytes > len(data):
            return
        if not checksum_matches(data, position, header):
            raise CorruptBatch(f"the batch at {header.base_offset} does not match its checksum")
        yield data[position : position + header.size_bytes]
        position += header.size_bytes
