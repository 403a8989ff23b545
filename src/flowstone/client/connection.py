"""A blocking connection to one broker: requests out, responses in, in order.

Owns the socket and the order of requests; `wire_session` owns versions and frames. Requests may be pipelined; a broker
answers in order. Does not know leaders, topics or retries: a failure raises `Disconnected` and closes the connection.
Bytes that are not Kafka's protocol raise `BadAnswer`.

Invariant: whatever interrupts a call closes the connection, so no later call can take an answer that is not its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import NamedTuple

from flowstone.client.errors import BadAnswer, Disconnected, LoginFailed
from flowstone.client.login import RENEWAL_SHARE, login
from flowstone.client.response_buffers import ReceiveBuffers
from flowstone.client.retry_deadline import monotonic
from flowstone.client.security import PLAINTEXT, ClientSecurity
from flowstone.client.wire_session import (
    SIZE_BYTES,
    Response,
    SentRequest,
    VersionRange,
    WireSession,
    decode,
    frame_size,
)
from flowstone.errors import ErrorCode, ProtocolError
from flowstone.ports.network import Stream
from flowstone.wire.apis import Api
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AlterClientQuotasRequest,
    AlterPartitionReassignmentsRequest,
    AlterShareGroupOffsetsRequest,
    AlterUserScramCredentialsRequest,
    ApiVersionsRequest,
    ApiVersionsResponse,
    CreateAclsRequest,
    CreateDelegationTokenRequest,
    DeleteAclsRequest,
    DeleteGroupsRequest,
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeDelegationTokenRequest,
    DescribeProducersRequest,
    DescribeShareGroupOffsetsRequest,
    DescribeTransactionsRequest,
    DescribeUserScramCredentialsRequest,
    ElectLeadersRequest,
    EndTxnRequest,
    ExpireDelegationTokenRequest,
    FetchRequest,
    FindCoordinatorRequest,
    IncrementalAlterConfigsRequest,
    InitProducerIdRequest,
    ListGroupsRequest,
    ListOffsetsRequest,
    ListPartitionReassignmentsRequest,
    ListTransactionsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    ProduceRequest,
    RenewDelegationTokenRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    ShareGroupDescribeRequest,
    TxnOffsetCommitRequest,
    UnregisterBrokerRequest,
    UpdateFeaturesRequest,
    WriteTxnMarkersRequest,
)

CONNECT_TIMEOUT_S = 10.0
_HINT = ": Flowstone, and Apache Kafka from 3.0 on, have one"

# The API versions that this client is written for. Topic names are needed in most requests, so versions with ids only
# are left out; FETCH_BY_ID is for topics whose id is known. Kafka 3.0 and later have a version in each range; of
# DescribeCluster, which is to tell of dead brokers, 4.0. Transactions use the first version of their protocol (see
# `transactions`): later versions of AddPartitionsToTxn, EndTxn, Produce and TxnOffsetCommit belong to the second.
VERSIONS: dict[type[Message], VersionRange] = {
    AddOffsetsToTxnRequest: (1, 4),
    AddPartitionsToTxnRequest: (1, 3),
    AlterClientQuotasRequest: (0, 1),
    AlterPartitionReassignmentsRequest: (0, 1),
    AlterShareGroupOffsetsRequest: (0, 0),
    AlterUserScramCredentialsRequest: (0, 0),
    ApiVersionsRequest: (0, 4),
    CreateAclsRequest: (1, 3),
    DeleteAclsRequest: (1, 3),
    DeleteGroupsRequest: (1, 2),
    DescribeAclsRequest: (1, 3),
    DescribeClientQuotasRequest: (0, 1),
    DescribeClusterRequest: (2, 2),
    DescribeConfigsRequest: (1, 4),
    DescribeProducersRequest: (0, 0),
    DescribeShareGroupOffsetsRequest: (0, 1),
    DescribeTransactionsRequest: (0, 0),
    DescribeUserScramCredentialsRequest: (0, 0),
    CreateDelegationTokenRequest: (2, 3),
    DescribeDelegationTokenRequest: (2, 3),
    ExpireDelegationTokenRequest: (2, 2),
    RenewDelegationTokenRequest: (2, 2),
    ElectLeadersRequest: (1, 2),
    EndTxnRequest: (1, 4),
    FetchRequest: (10, 12),
    FindCoordinatorRequest: (4, 6),
    IncrementalAlterConfigsRequest: (0, 1),
    InitProducerIdRequest: (1, 5),
    ListGroupsRequest: (5, 5),
    ListOffsetsRequest: (4, 9),
    ListPartitionReassignmentsRequest: (0, 0),
    ListTransactionsRequest: (0, 2),
    MetadataRequest: (7, 12),
    OffsetCommitRequest: (6, 9),
    OffsetFetchRequest: (8, 9),
    ProduceRequest: (7, 11),
    ShareGroupDescribeRequest: (1, 1),
    SaslAuthenticateRequest: (1, 2),
    SaslHandshakeRequest: (1, 1),
    TxnOffsetCommitRequest: (3, 4),
    UnregisterBrokerRequest: (0, 0),
    UpdateFeaturesRequest: (1, 2),
    WriteTxnMarkersRequest: (1, 2),
}


FETCH_BY_ID: VersionRange = (13, 16)  # later ones are for followers


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Connection:
    def __init__(
        self, address: Address, client_id: str, timeout_s: float, security: ClientSecurity = PLAINTEXT
    ) -> None:
        """Connect, and log in if `security` says so.

        Raises Disconnected if the address does not answer, BadAnswer if it is not a broker's, and LoginFailed.
        """
        self.address, self._security = address, security
        self._renews_at_s = inf  # when to log in again
        self._session = WireSession(str(address), client_id, _known_versions, _HINT)
        self._unanswered: deque[SentRequest] = deque()
        self._size = memoryview(bytearray(SIZE_BYTES))
        try:
            self.stream = _open(address, timeout_s, security)
        except OSError as error:
            raise Disconnected(f"no broker answers at {address} ({error.strerror or error})") from error
        self._agree(timeout_s)
        self.fetches_by_id = self._session.serves(FetchRequest, FETCH_BY_ID)
        if security.has_sasl:
            self._log_in(timeout_s)

    @property
    def is_idle(self) -> bool:
        """Return whether the connection is open and every response has been received."""
        return not self._unanswered and self.stream.fileno() >= 0

    def ask(self, request: Message, kind: type[Response], timeout_s: float) -> Response:
        self.send(request, timeout_s)
        return self.receive(kind, timeout_s)

    def send(
        self, request: Message, timeout_s: float, *, is_answered: bool = True, versions: VersionRange | None = None
    ) -> None:
        """Send a request; `timeout_s` is how long the broker may accept no bytes. With acks=0 there is no response.

        `versions` are others than VERSIONS has, one of which the broker must have, as with `fetches_by_id`.
        """
        if not self._unanswered and monotonic() > self._renews_at_s:
            self._log_in(timeout_s)
        with self._closed_by_failure():
            sent, parts = self._session.encode(request, versions)
            self.stream.send_all(parts, timeout_s)
        if is_answered:
            self._unanswered.append(sent)

    def receive(self, kind: type[Response], timeout_s: float, buffers: ReceiveBuffers | None = None) -> Response:
        """Return the response to the oldest unanswered request; its records are views of the receive buffer."""
        sent = self._unanswered.popleft()
        with self._closed_by_failure():
            response = decode(sent, self._receive_frame(timeout_s, buffers))
        assert isinstance(response, kind)
        return response

    def close(self) -> None:
        self._unanswered.clear()
        self.stream.close()

    def _receive_frame(self, timeout_s: float, buffers: ReceiveBuffers | None) -> memoryview:
        self.stream.receive_all(self._size, timeout_s)
        size_bytes = frame_size(self._size)
        frame = memoryview(bytearray(size_bytes)) if buffers is None else buffers.take(size_bytes)
        self.stream.receive_all(frame, timeout_s)
        return frame

    def _agree(self, timeout_s: float) -> None:
        request = self._session.versions_request()
        answer = self.ask(request, ApiVersionsResponse, timeout_s)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            self._session.ask_oldest_versions()
            answer = self.ask(request, ApiVersionsResponse, timeout_s)
        with self._closed_by_failure():
            self._session.agree(answer)

    def _log_in(self, timeout_s: float) -> None:
        self._renews_at_s = inf
        steps, answer = login(self._security, str(self.address)), None
        try:
            while True:
                wanted = steps.send(answer)
                answer = wanted() if callable(wanted) else self.ask(*wanted, timeout_s)
        except StopIteration as end:
            if end.value:
                self._renews_at_s = monotonic() + end.value / 1000 * RENEWAL_SHARE
        except BaseException:
            self.close()
            raise

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


def _open(address: Address, timeout_s: float, security: ClientSecurity) -> Stream:
    """Return a stream. Raises OSError, and LoginFailed if one side does not trust the other's certificate."""
    if not security.has_tls:
        return Stream(*address, timeout_s)
    from flowstone.ports.tls import TlsStream, untrusted

    try:
        return TlsStream(*address, timeout_s, security.tls_context())
    except OSError as error:
        reason = untrusted(error)
        if reason is None:
            raise
        raise LoginFailed(f"the broker at {address} and this client do not trust each other: {reason}") from error


def _known_versions(api: Api) -> VersionRange:
    return VERSIONS[api.request]
