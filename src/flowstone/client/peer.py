"""A broker's connection to another broker, on the event loop: requests out, responses in, in order.

Owns the channel and the order of requests; `wire_session` owns versions and frames. Several requests may be in flight.
Receive buffers are reused once no view of them is held: a response's records are such views. Does not know leaders or
retries.

Invariant: whatever fails (the stream, a timeout, bytes that are not Kafka's protocol, a caller that gives up) closes
the connection, and all waiting requests raise `Disconnected` or `BadAnswer`: no response is taken for the wrong
request. A connection with unanswered requests is aborted, so that a request that has not arrived by then never does:
its sender will repeat it, and after the repetition it could do harm.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from ssl import SSLContext
from typing import NamedTuple

from flowstone.client.connection import Address
from flowstone.client.errors import BadAnswer, ClientError, Disconnected, LoginFailed
from flowstone.client.login import RENEWAL_SHARE, login
from flowstone.client.response_buffers import ReceiveBuffers
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
from flowstone.errors import ProtocolError
from flowstone.ports.clock import Clock, Timer
from flowstone.ports.network import Accept, Channel, Listener, Network
from flowstone.ports.tls import secure_client
from flowstone.wire.apis import Api
from flowstone.wire.message import Message
from flowstone.wire.messages import ApiVersionsResponse, FetchRequest, ShareAcknowledgeRequest, ShareFetchRequest

# Small responses are received whole, with their length, in one call.
RECEIVE_BYTES = 64 << 10
# A response larger than this gets new memory, as does one that a single large batch makes longer than was requested.
BUFFER_BYTES = 10 << 20
READS_PER_WAKEUP_MAX = 16

# Share consumers renew locks, which version 2 of their requests began with.
# Brokers differ by one release at most while a cluster is upgraded, and each supports these versions: a follower sends
# its broker epoch since version 15 of Fetch, which names topics by their ids.
VERSIONS_MIN: dict[type[Message], int] = {FetchRequest: 15, ShareAcknowledgeRequest: 2, ShareFetchRequest: 2}


class _Question(NamedTuple):
    sent: SentRequest
    answer: asyncio.Future[Message]
    deadline: Timer


class SecuredNetwork:
    """A network whose outgoing connections are encrypted; `security` also says how `Peer` logs in."""

    def __init__(
        self, network: Network, security: ClientSecurity, context: Callable[[], SSLContext] | None = None
    ) -> None:
        """Create the network. `context` returns the TLS context for a new connection, that of `security` if None."""
        self._network, self.security = network, security
        self._context = context or security.tls_context

    def bind(self, host: str, port: int, accept: Accept, *, send_buffer_bytes: int = -1) -> Listener:
        return self._network.bind(host, port, accept, send_buffer_bytes=send_buffer_bytes)

    async def connect(self, host: str, port: int, timeout_s: float) -> Channel:
        """Connect to an address. Raises OSError or TimeoutError if that fails."""
        channel = await self._network.connect(host, port, timeout_s)
        if not self.security.has_tls:
            return channel
        return await secure_client(channel, self._context(), host, timeout_s)


def secured(network: Network, security: ClientSecurity) -> Network:
    """Return the network for `Peer.connect` with this security."""
    return network if security == PLAINTEXT else SecuredNetwork(network, security)


class Peer:
    def __init__(self, channel: Channel, clock: Clock, address: Address, client_id: str) -> None:
        """Create the peer for `connect`, which also negotiates the versions."""
        self.address = address
        self._channel, self._clock = channel, clock
        self._session = WireSession(str(address), client_id, _known_versions, "")
        self._unanswered: deque[_Question] = deque()
        self._closed_with: ClientError | None = None
        self._unsent: list[memoryview] = []
        # Received and not parsed yet: less than a whole frame.
        self._kept = memoryview(bytearray(RECEIVE_BYTES))
        self._kept_bytes = 0
        self._frame: memoryview | None = None
        self._frame_filled = 0
        self._buffers = ReceiveBuffers(BUFFER_BYTES)
        self._renewal: Timer | None = None  # of the login
        channel.on_readable(self._readable)

    @classmethod
    async def connect(cls, network: Network, clock: Clock, address: Address, client_id: str, timeout_s: float) -> Peer:
        """Connect, and log in if `network` is a `SecuredNetwork` that says so.

        Raises Disconnected if the address does not answer, BadAnswer if it is not a broker's, and LoginFailed.
        """
        security = network.security if isinstance(network, SecuredNetwork) else PLAINTEXT
        try:
            channel = await network.connect(*address, timeout_s)
        except OSError as error:
            raise Disconnected(f"no broker answers at {address} ({error.strerror or error})") from error
        peer = cls(channel, clock, address, client_id)
        await peer._agree(timeout_s)
        if security.has_sasl:
            await peer._log_in(security, timeout_s)
        return peer

    @property
    def is_open(self) -> bool:
        return self._closed_with is None

    async def ask(self, request: Message, kind: type[Response], timeout_s: float) -> Response:
        """Return the response; its records are views that keep their memory for as long as they are held."""
        if self._closed_with is not None:
            raise self._closed_with
        sent, parts = self._session.encode(request)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        deadline = self._clock.call_later(timeout_s, self._timed_out)
        self._unanswered.append(_Question(sent, answer, deadline))
        self._unsent.extend(memoryview(each) for each in parts if len(each))
        self._writable()
        try:
            response = await answer
        except asyncio.CancelledError:
            self.close()  # the late response would be taken for the next one's
            raise
        finally:
            deadline.cancel()
        assert isinstance(response, kind)
        return response

    def close(self) -> None:
        self._fail(Disconnected(f"the connection to {self.address} was closed"))

    async def _agree(self, timeout_s: float) -> None:
        answer = await self.ask(self._session.versions_request(), ApiVersionsResponse, timeout_s)
        try:
            self._session.agree(answer)
        except BadAnswer as error:
            self._fail(error)
            raise

    async def _log_in(self, security: ClientSecurity, timeout_s: float) -> None:
        """Log in, now and again before the session ends."""
        steps, answer = login(security, str(self.address)), None
        try:
            while True:
                wanted = steps.send(answer)
                if callable(wanted):
                    answer = await asyncio.to_thread(wanted)
                else:
                    answer = await self.ask(*wanted, timeout_s)
        except StopIteration as end:
            if end.value and self._closed_with is None:
                renew = partial(self._renew, security, timeout_s)
                self._renewal = self._clock.call_later(end.value / 1000 * RENEWAL_SHARE, renew)
        except LoginFailed as error:
            self._fail(error)
            raise

    def _renew(self, security: ClientSecurity, timeout_s: float) -> None:
        renewing = asyncio.ensure_future(self._log_in(security, timeout_s))
        renewing.add_done_callback(lambda task: task.cancelled() or task.exception())

    # Sending

    def _writable(self) -> None:
        unsent = self._unsent
        try:
            while unsent:
                sent = self._channel.send(unsent)
                while sent:
                    if sent < len(unsent[0]):
                        unsent[0] = unsent[0][sent:]
                        break
                    sent -= len(unsent.pop(0))
        except BlockingIOError:
            self._channel.on_writable(self._writable)
            return
        except OSError as error:
            self._broken(error)
            return
        self._channel.on_writable(None)

    # Receiving

    def _readable(self) -> None:
        try:
            for _ in range(READS_PER_WAKEUP_MAX):
                is_more_likely = self._receive() if self._frame is None else self._receive_frame(self._frame)
                if not is_more_likely or self._closed_with is not None:
                    return
        except BlockingIOError:
            return
        except OSError as error:
            self._broken(error)
        except ProtocolError as error:
            self._fail(BadAnswer(f"what answers at {self.address} does not speak Kafka's protocol ({error})"))

    def _receive(self) -> bool:
        """Read frames: whole ones are copied and answered; an incomplete one gets a buffer for the rest.

        Returns False if nothing more can have arrived yet: another call would be wasted.
        """
        end = self._kept_bytes + self._received_into(self._kept[self._kept_bytes :])
        at = 0
        while end - at >= SIZE_BYTES:
            size_bytes = frame_size(self._kept, at)
            at += SIZE_BYTES
            frame = self._buffers.take(size_bytes)
            got_bytes = min(end - at, size_bytes)
            frame[:got_bytes] = self._kept[at : at + got_bytes]
            at += got_bytes
            if got_bytes < size_bytes:
                self._frame, self._frame_filled = frame, got_bytes
                break
            self._answered(frame)
        self._kept_bytes = end - at
        self._kept[: self._kept_bytes] = bytes(self._kept[at:end])
        return end == RECEIVE_BYTES

    def _receive_frame(self, frame: memoryview) -> bool:
        self._frame_filled += self._received_into(frame[self._frame_filled :])
        if self._frame_filled < len(frame):
            return False
        self._frame = None
        self._answered(frame)
        return True

    def _received_into(self, buffer: memoryview) -> int:
        received = self._channel.receive_into(buffer)
        if not received:
            raise ConnectionError("the broker closed the connection")
        return received

    def _answered(self, frame: memoryview) -> None:
        if not self._unanswered:
            raise ProtocolError("a response to no request")
        sent, answer, _ = self._unanswered[0]
        response = decode(sent, frame)
        self._unanswered.popleft()
        if not answer.done():
            answer.set_result(response)

    # Ending

    def _timed_out(self) -> None:
        self._fail(Disconnected(f"the broker at {self.address} did not answer in time"))

    def _broken(self, error: OSError) -> None:
        self._fail(Disconnected(f"the connection to {self.address} broke ({error.strerror or error})"))

    def _fail(self, error: ClientError) -> None:
        if self._closed_with is not None:
            return
        self._closed_with = error
        if self._renewal is not None:
            self._renewal.cancel()
        if self._unanswered:
            self._channel.abort()
        else:
            self._channel.close()
        self._frame = None
        self._unsent.clear()
        for question in self._unanswered:
            question.deadline.cancel()
            if not question.answer.done():
                question.answer.set_exception(error)
        self._unanswered.clear()


def _known_versions(api: Api) -> VersionRange:
    """Return the versions that this broker serves; a peer may have older or newer ones while a cluster is upgraded."""
    return VERSIONS_MIN.get(api.request, api.min_version), api.max_version
