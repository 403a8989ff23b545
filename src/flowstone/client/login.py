"""The client's side of a SASL login, without a connection: messages out, answers in.

`login` is a generator. It yields requests, and functions that take milliseconds of computation, and is sent the
response or the result. So a blocking connection and one on the event loop share it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from secrets import token_hex
from typing import Any

from flowstone.authentication import plain
from flowstone.authentication.delegation_tokens import TOKEN_EXTENSION
from flowstone.authentication.scram import MECHANISMS, ScramClient, ScramError, salted_password
from flowstone.client.errors import LoginFailed
from flowstone.client.security import ClientSecurity
from flowstone.errors import ErrorCode
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

NONCE_BYTES = 16
# When to log in again, as a part of the session's lifetime.
RENEWAL_SHARE = 0.85

Wanted = tuple[Message, type[Message]] | Callable[[], Any]
# What the driver of a login is to do; it ends with the session's lifetime in ms, 0 if it has no end.
Login = Generator[Wanted, Any, int]


def login(security: ClientSecurity, broker: str) -> Login:
    """Log in. Raises LoginFailed if the broker refuses, or does not prove that it knows the credential."""
    mechanism = security.mechanism
    handshake: SaslHandshakeResponse = yield SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse
    if handshake.error_code:
        enabled = ", ".join(handshake.mechanisms)
        raise LoginFailed(
            f"the broker at {broker} does not take the mechanism {mechanism}"
            + (f": it has {enabled}; choose one as sasl.mechanism" if enabled else ": its listener has no logins")
        )
    if mechanism == "PLAIN":
        answer = yield from _send(plain.encode(security.username, security.password), security, broker)
        return int(answer.session_lifetime_ms)
    extensions = f",{TOKEN_EXTENSION}=true" if security.is_token else ""
    scram = ScramClient(MECHANISMS[mechanism], security.username, token_hex(NONCE_BYTES), extensions)
    try:
        first = yield from _send(scram.first(), security, broker)
        challenge = scram.parse_challenge(bytes(first.auth_bytes))
        salted = yield partial(salted_password, MECHANISMS[mechanism], security.password, *challenge)
        last = yield from _send(scram.final(salted), security, broker)
        scram.check(bytes(last.auth_bytes))
    except (ScramError, UnicodeDecodeError) as error:
        raise LoginFailed(f"the broker at {broker} cannot be trusted: {error}") from None
    return int(last.session_lifetime_ms)


def _send(
    message: bytes, security: ClientSecurity, broker: str
) -> Generator[Wanted, SaslAuthenticateResponse, SaslAuthenticateResponse]:
    answer = yield SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse
    if answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED:
        raise LoginFailed(
            f"the broker at {broker} refused the login of {security.username!r} with {security.mechanism}: see that "
            "the user exists and the password is right"
        )
    if answer.error_code:
        raise LoginFailed(f"the broker at {broker} refused the login: {answer.error_message}")
    return answer
