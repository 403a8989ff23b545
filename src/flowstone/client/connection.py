"""One connection to one broker: requests out, responses in, in order.

Owns frames, correlation ids and the versions agreed on. Requests may be sent ahead of the responses to earlier ones; a
broker answers in order. Knows nothing of leaders, topics or retries: a failure is `Disconnected`, after which the
connection is closed. What is not Kafka's protocol is `BadAnswer`.

Invariant: whatever interrupts a call closes the connection, so no later call can take an answer that is not its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple, TypeVar

from flowstone.client.buffers import ReceiveBuffers
from flowstone.client.errors import BadAnswer, ClientError, Disconnected
from flowstone.errors import ErrorCode, ProtocolError
from flowstone.ports.network import Stream
from flowstone.types import Bytes
from flowstone.wire.apis import APIS, Api
from flowstone.wire.codec import request_encoder, response_decoder
from flowstone.wire.frames import encode_request_header, parse_response_header
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    AlterPartitionReassignmentsRequest,
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    ElectLeadersRequest,
    FetchRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    ListPartitionReassignmentsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    ProduceRequest,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
)

CONNECT_TIMEOUT_S = 10.0
# A batch of the largest request that brokers take by default (100 MiB), and what stands around it.
RESPONSE_BYTES_MAX = 128 << 20

SOFTWARE_NAME, SOFTWARE_VERSION = "flowstone-client", "1"

# What this client is written for; the names of topics stand in requests, so the versions that have only ids are left
# out. Kafka 3.0 and later have a version in each range; of DescribeCluster, which is to tell of dead brokers, 4.0.
VERSIONS: dict[type[Message], tuple[int, int]] = {
    AlterPartitionReassignmentsRequest: (0, 1),
    ApiVersionsRequest: (0, 4),
    DescribeClusterRequest: (2, 2),
    DescribeConfigsRequest: (1, 4),
    ElectLeadersRequest: (1, 2),
    FetchRequest: (10, 12),
    FindCoordinatorRequest: (4, 6),
    InitProducerIdRequest: (1, 5),
    ListOffsetsRequest: (4, 9),
    ListPartitionReassignmentsRequest: (0, 0),
    MetadataRequest: (7, 12),
    OffsetCommitRequest: (6, 9),
    OffsetFetchRequest: (8, 9),
    ProduceRequest: (7, 12),
    UnregisterBrokerRequest: (0, 0),
    UpdateFeaturesRequest: (1, 2),
}

_APIS = {api.request: api for api in APIS.values()}
_SIZE = Struct(">i")
_SIZE_BYTES_MIN = 4  # a correlation id

Response = TypeVar("Response", bound=Message)


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Connection:
    def __init__(self, address: Address, client_id: str, timeout_s: float) -> None:
        """Disconnected if nobody answers there; BadAnswer if who does is not a broker."""
        self.address = address
        self._client_id = client_id
        self._correlation_id = 0
        self._unanswered: deque[tuple[Api, int, int]] = deque()
        self._ranges: dict[int, tuple[int, int]] = {}
        self._versions: dict[type[Message], int] = {ApiVersionsRequest: VERSIONS[ApiVersionsRequest][1]}
        self._size = memoryview(bytearray(_SIZE.size))
        try:
            self.stream = Stream(*address, timeout_s)
        except OSError as error:
            raise Disconnected(f"no broker answers at {address} ({error.strerror or error})") from error
        self._agree(timeout_s)

    @property
    def is_idle(self) -> bool:
        """Whether it is open and every answer has been received."""
        return not self._unanswered and self.stream.fileno() >= 0

    def ask(self, request: Message, kind: type[Response], timeout_s: float) -> Response:
        self.send(request, timeout_s)
        return self.receive(kind, timeout_s)

    def send(self, request: Message, timeout_s: float, *, is_answered: bool = True) -> None:
        """`timeout_s` is for how long the broker may take nothing; a produce with acks=0 is not answered."""
        api = _APIS[type(request)]
        self._correlation_id = self._correlation_id + 1 & 0x7FFFFFFF
        with self._closed_by_failure():
            version = self._version(request)
            try:
                body: list[Bytes] = request_encoder(api.key, version)(request)  # type: ignore[assignment]
            except struct_error as error:
                reason = f"a number is beyond what the protocol has room for: {error}"
                raise ClientError(f"{type(request).__name__}: {reason}") from None
            header = encode_request_header(api.key, version, self._correlation_id, self._client_id)
            size = _SIZE.pack(len(header) + sum(map(len, body)))
            self.stream.send_all((size + header, *body), timeout_s)
        if is_answered:
            self._unanswered.append((api, version, self._correlation_id))

    def receive(self, kind: type[Response], timeout_s: float, buffers: ReceiveBuffers | None = None) -> Response:
        """The response to the oldest request not answered yet; its records are a view of the memory taken for it."""
        api, version, expected_id = self._unanswered.popleft()
        with self._closed_by_failure():
            frame = self._receive_frame(timeout_s, buffers)
            correlation_id, at = parse_response_header(frame, 0, api.has_flexible_response_header(version))
            if correlation_id != expected_id:
                raise ProtocolError(f"the answer to request {correlation_id} came for {expected_id}")
            if api.key == _APIS[ApiVersionsRequest].key and _is_version_refused(frame, at):
                version = 0
            response = response_decoder(api.key, version)(frame, at)
        assert isinstance(response, kind)
        return response

    def close(self) -> None:
        self._unanswered.clear()
        self.stream.close()

    def _receive_frame(self, timeout_s: float, buffers: ReceiveBuffers | None) -> memoryview:
        self.stream.receive_all(self._size, timeout_s)
        (size_bytes,) = _SIZE.unpack(self._size)
        if not _SIZE_BYTES_MIN <= size_bytes <= RESPONSE_BYTES_MAX:
            raise ProtocolError(f"a response of {size_bytes} bytes, and {RESPONSE_BYTES_MAX} are taken at most")
        frame = memoryview(bytearray(size_bytes)) if buffers is None else buffers.take(size_bytes)
        self.stream.receive_all(frame, timeout_s)
        return frame

    def _agree(self, timeout_s: float) -> None:
        request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION)
        answer = self.ask(request, ApiVersionsResponse, timeout_s)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            self._versions[ApiVersionsRequest] = 0
            answer = self.ask(request, ApiVersionsResponse, timeout_s)
        if answer.error_code:
            self.close()
            raise BadAnswer(f"the broker at {self.address} does not say what it speaks: error {answer.error_code}")
        self._ranges = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}

    def _version(self, request: Message) -> int:
        kind = type(request)
        version = self._versions.get(kind)
        if version is None:
            api, (lowest, highest) = _APIS[kind], VERSIONS[kind]
            served_lowest, served_highest = self._ranges.get(api.key, (0, -1))
            version = self._versions[kind] = min(highest, served_highest)
            if version < max(lowest, served_lowest):
                del self._versions[kind]
                raise BadAnswer(
                    f"the broker at {self.address} has no version of {api.name} between {lowest} and {highest}: "
                    "Flowstone, and Apache Kafka from 3.0 on, have one"
                )
        return version

    @contextmanager
    def _closed_by_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.close()
            raise Disconnected(f"the connection to {self.address} broke ({error.strerror or error})") from error
        except ProtocolError as error:
            self.close()
            raise BadAnswer(f"what answers at {self.address} does not speak Kafka's protocol ({error})") from error
        except BaseException:
            self.close()
            raise


def _is_version_refused(frame: memoryview, at: int) -> bool:
    """A broker that does not know the version of an ApiVersions request answers in version 0."""
    return int.from_bytes(frame[at : at + 2], "big", signed=True) == ErrorCode.UNSUPPORTED_VERSION
