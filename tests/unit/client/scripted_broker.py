"""A broker that answers as a test tells it to: for what no single healthy broker does.

It decodes requests with the codec and answers each with what the test's function returns: a message, raw bytes that
take the place of the whole frame, such bytes after which it hangs up, `CLOSE` or `SILENCE`.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple, Self

from flowstone.types import TopicPartition
from flowstone.wire.apis import APIS
from flowstone.wire.codec import request_decoder, response_encoder
from flowstone.wire.frames import parse_request_header, response_header
from flowstone.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    ApiVersionsResponseApiVersion,
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


class Torn(NamedTuple):
    data: bytes


CLOSE = Torn(b"")
SILENCE = b""
VERSIONS = {api.key: (api.min_version, api.max_version) for api in APIS.values()}
Answer = Callable[[Any], Any]


class ScriptedBroker:
    def __init__(
        self, answer: Answer, versions: dict[int, tuple[int, int]] = VERSIONS, greeting: bytes | None = None
    ) -> None:
        """`greeting` is what it answers to the question which versions it has, instead of those."""
        self._answer, self._versions, self._greeting = answer, versions, greeting
        self.requests: list[Any] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self._listener.getsockname()
        self.bootstrap = f"{self.host}:{self.port}"
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        # Shutting down wakes a thread that waits; closing alone does not.
        for each in (self._listener, *self._connections):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            try:
                while size := stream.read(4):
                    if not self._handle(connection, stream.read(struct.unpack(">i", size)[0])):
                        return
            except OSError:
                return

    def _handle(self, connection: socket.socket, frame: bytes) -> bool:
        view = memoryview(frame)
        header = parse_request_header(view, 0)
        api, version = APIS[header.api_key], header.api_version
        lowest, highest = self._versions[api.key]
        if not lowest <= version <= highest:
            assert api.request is ApiVersionsRequest
            answer, version = self._api_versions(35), 0
        else:
            request = request_decoder(api.key, version)(view, header.body_position)
            self.requests.append(request)
            answer = self._api_versions(0) if api.request is ApiVersionsRequest else self._answer(request)
        if isinstance(answer, Torn):
            connection.sendall(answer.data)
            return False
        if not isinstance(answer, bytes):
            body = b"".join(response_encoder(api.key, version)(answer))
            framed = response_header(header.correlation_id, api.has_flexible_response_header(version)) + body
            answer = struct.pack(">i", len(framed)) + framed
        connection.sendall(answer)
        return True

    def _api_versions(self, error_code: int) -> ApiVersionsResponse | bytes:
        if self._greeting is not None:
            return self._greeting
        keys = [
            ApiVersionsResponseApiVersion(api_key=key, min_version=lowest, max_version=highest)
            for key, (lowest, highest) in self._versions.items()
        ]
        return ApiVersionsResponse(error_code=error_code, api_keys=keys)


def metadata(
    leaders: dict[TopicPartition, int], brokers: dict[int, ScriptedBroker], epoch: int = 0
) -> MetadataResponse:
    """Topics led by the brokers that are named by number."""
    topics: dict[str, list[MetadataResponsePartition]] = {}
    for (topic, index), leader in leaders.items():
        part = MetadataResponsePartition(partition_index=index, leader_id=leader, leader_epoch=epoch)
        topics.setdefault(topic, []).append(part)
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node, host=each.host, port=each.port) for node, each in brokers.items()
        ],
        topics=[MetadataResponseTopic(name=name, partitions=parts) for name, parts in topics.items()],
    )


def fetched(partition: TopicPartition, records: bytes = b"", **fields: Any) -> FetchResponse:
    part = FetchResponsePartition(partition_index=partition.partition, records=records, **fields)
    return FetchResponse(responses=[FetchResponseTopic(topic=partition.topic, partitions=[part])])
