"""Gate for requests on a listener with SASL: which ones are accepted before, during and after the login.

Before the login only ApiVersions and SaslHandshake are parsed; anything else closes the connection without an answer.
Afterwards the gate only checks that the session has not expired.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, cast

from flowstone.broker.authentication.sasl_login import LoginState, SaslLogin
from flowstone.broker.dispatch.deferred import Answer, Deferred, Outcome
from flowstone.broker.loop.loop_time import start
from flowstone.broker.requests.chunks import Chunk
from flowstone.broker.requests.error_responses import empty_error_response
from flowstone.broker.requests.session import ClientSession
from flowstone.errors import ApiError, ErrorCode, ProtocolError
from flowstone.ports.clock import Clock
from flowstone.wire.apis import API_VERSIONS_KEY, APIS
from flowstone.wire.codec import response_encoder
from flowstone.wire.frames import parse_request_header

# The longest frame that a client may send before it is logged in, as in Kafka.
LOGIN_FRAME_BYTES_MAX = 524_288
HANDSHAKE_KEY, AUTHENTICATE_KEY = 17, 36
_LOGIN_KEYS = (HANDSHAKE_KEY, AUTHENTICATE_KEY, API_VERSIONS_KEY)
_KEY = struct.Struct(">h")
_SIZE = struct.Struct(">i")
_HEAD = struct.Struct(">ii")
_FLEXIBLE_HEAD = struct.Struct(">iix")

Handle = Callable[[memoryview, ClientSession], Answer]


class LoginGate:
    def __init__(self, login: SaslLogin, handle: Handle, clock: Clock) -> None:
        """Create the gate of one connection in front of `handle`."""
        self._login, self._handle, self._clock = login, handle, clock

    def answer(self, frame: memoryview, session: ClientSession) -> Answer:
        """Answer one frame. Raises ProtocolError if the connection must be closed."""
        login = self._login
        if login.state is LoginState.DONE:
            if login.expires_at_s is not None:
                self._check_expiry(frame, login.expires_at_s)
            return self._handle(frame, session)
        if login.state is LoginState.RAW:
            return Deferred(start(self._authenticate_raw(bytes(frame), session)), _encode_raw)
        if len(frame) < _KEY.size:
            raise ProtocolError("a request without an API key")
        (key,) = _KEY.unpack_from(frame)
        if login.state is LoginState.NEW:
            if key not in (HANDSHAKE_KEY, API_VERSIONS_KEY):
                raise ProtocolError(f"API {key} was requested before the login")
            return self._handle(frame, session)
        if key == AUTHENTICATE_KEY:
            return self._handle(frame, session)
        return Deferred(start(self._refuse(frame, session)), _result)

    def _check_expiry(self, frame: memoryview, expires_at_s: float) -> None:
        if self._clock.monotonic() < expires_at_s or len(frame) < _KEY.size:
            return
        if _KEY.unpack_from(frame)[0] not in _LOGIN_KEYS:
            raise ProtocolError("the session has expired, and the client has not logged in again")

    async def _authenticate_raw(self, message: bytes, session: ClientSession) -> bytes:
        """Answer a message that has no request around it; a failure closes the connection without an answer."""
        try:
            return (await self._login.authenticate(message)).challenge
        except ApiError as error:
            raise ProtocolError(str(error)) from None

    async def _refuse(self, frame: memoryview, session: ClientSession) -> list[Chunk]:
        """Answer a request that is not allowed during the login with its error, and close the connection.

        Its body is not parsed, so an answer that repeats parts of the request has none of them.
        """
        session.end()
        key, version, correlation_id, _, _ = parse_request_header(frame, 0)
        api = APIS.get(key)
        if api is None or not api.has_version(version):
            raise ProtocolError(f"API {key}, version {version} was requested during the login")
        response = empty_error_response(api.name, version, ErrorCode.ILLEGAL_SASL_STATE)
        chunks = cast(list[Chunk], list(response_encoder(key, version)(response)))
        head = _FLEXIBLE_HEAD if api.has_flexible_response_header(version) else _HEAD
        packed = head.pack(head.size - _SIZE.size + sum(map(len, chunks)), correlation_id)
        return [packed, *chunks]


def _encode_raw(outcome: Outcome) -> list[Chunk]:
    message = cast(bytes, outcome.result())
    return [_SIZE.pack(len(message)) + message]


def _result(outcome: Outcome) -> Any:
    return outcome.result()
