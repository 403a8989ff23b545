"""SASL on one connection: handshake, messages of the mechanism, and logging in again (KIP-368).

The connection decides which requests pass in which state (`broker.network.login_gate`). Every failed login has the
same text for the client; the reason is logged (`failed_logins`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple

from flowstone.authentication.errors import LoginRefused
from flowstone.authentication.scram import MECHANISMS
from flowstone.broker.authentication.failed_logins import FailedLogins
from flowstone.broker.authentication.listener_security import ListenerSecurity
from flowstone.broker.authentication.mechanisms import Authenticated, Credentials, Mechanism, OAuthBearer, Plain, Scram
from flowstone.broker.requests.audit import LOGIN_FAILED, client_fields
from flowstone.broker.requests.session import ClientSession, Principal
from flowstone.errors import ApiError, ErrorCode
from flowstone.ports.clock import Clock

# A client that is logged in may begin to log in again this long after it last did.
REAUTHENTICATION_INTERVAL_S = 1.0
# The messages of one login; no mechanism here needs more.
MESSAGES_MAX = 4
USER_TYPE = "User"
LOGIN = "login"


class LoginState(Enum):
    """The progress of a connection's first login."""

    NEW = auto()
    HANDSHAKEN = auto()  # messages follow as SaslAuthenticate requests
    RAW = auto()  # messages follow without a request around them, after a handshake of version 0
    DONE = auto()


class Answered(NamedTuple):
    """The answer to a client's message of the mechanism; a lifetime of 0 has no end."""

    challenge: bytes
    lifetime_ms: int


class SaslLogin:
    def __init__(
        self,
        security: ListenerSecurity,
        credentials: Credentials,
        clock: Clock,
        session: ClientSession,
        on_logged_in: Callable[[], None],
        audit: Callable[..., None],
        failed: FailedLogins,
    ) -> None:
        """Begin the login of one connection. `on_logged_in` is called after the first successful login, and `audit` for
        each.
        """
        self._audit, self._failed = audit, failed
        self._security, self._credentials, self._clock, self._session = security, credentials, clock, session
        self._on_logged_in = on_logged_in
        self._mechanism: Mechanism | None = None
        self._mechanism_name = self._logged_in_with = ""
        self._messages = 0
        self._logged_in_at_s = 0.0
        self.state = LoginState.NEW
        # The end of the session in monotonic time; None: it has none.
        self.expires_at_s: float | None = None

    @property
    def mechanisms(self) -> tuple[str, ...]:
        return self._security.mechanisms

    def handshake(self, mechanism: str, *, is_raw: bool) -> None:
        """Choose the mechanism. Raises ApiError if it is not enabled, or if this is not the time."""
        is_again = self.state is LoginState.DONE
        if (is_again and not self._may_begin_again()) or self.state in (LoginState.HANDSHAKEN, LoginState.RAW):
            raise ApiError(ErrorCode.ILLEGAL_SASL_STATE)
        if mechanism not in self._security.mechanisms:
            raise ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM)
        self._mechanism, self._mechanism_name, self._messages = self._new(mechanism), mechanism, 0
        if not is_again:
            self.state = LoginState.RAW if is_raw else LoginState.HANDSHAKEN

    async def authenticate(self, message: bytes) -> Answered:
        """Handle one message of the mechanism. Raises ApiError; the login is over then, and the connection too."""
        if self._mechanism is None:
            raise ApiError(ErrorCode.ILLEGAL_SASL_STATE, "SaslAuthenticate must follow SaslHandshake")
        self._messages += 1
        began_s = self._clock.monotonic()
        try:
            if self._messages > MESSAGES_MAX:
                raise LoginRefused("the client sent too many messages")
            challenge, outcome = await self._mechanism.step(message)
            if outcome is None:
                return Answered(challenge, 0)
            self._check_same(outcome)
        except (LoginRefused, ValueError) as error:
            self._mechanism = None
            raise await self._refused(str(error), began_s) from None
        return Answered(challenge, self._logged_in(outcome))

    def _check_same(self, outcome: Authenticated) -> None:
        if self.state is not LoginState.DONE:
            return
        if self._mechanism_name != self._logged_in_with:
            raise LoginRefused("the client logs in again with another mechanism")
        if Principal(USER_TYPE, outcome.user) != self._session.principal:
            raise LoginRefused("the client logs in again as another user")

    def _logged_in(self, outcome: Authenticated) -> int:
        """Record the user, and return how long the session lasts in ms."""
        now_s, is_first = self._clock.monotonic(), self.state is not LoginState.DONE
        limits = [self._security.reauth_ms] if self._security.reauth_ms else []
        if outcome.expires_at_ms is not None:
            limits.append(max(outcome.expires_at_ms - self._clock.time_ms(), 0))
        lifetime_ms = min(limits, default=0)
        self.expires_at_s = now_s + lifetime_ms / 1000 if limits else None
        self._logged_in_at_s, self._logged_in_with, self._mechanism = now_s, self._mechanism_name, None
        self.state = LoginState.DONE
        self._session.token_id = outcome.token_id
        if is_first:
            self._session.principal = Principal(USER_TYPE, outcome.user)
            self._on_logged_in()
        token = {"token_id": outcome.token_id} if outcome.token_id else {}
        self._audit(LOGIN, **client_fields(self._session), mechanism=self._mechanism_name, again=not is_first, **token)
        return lifetime_ms

    async def _refused(self, reason: str, began_s: float) -> ApiError:
        """Log why a login failed; return the error that the client is told, after a delay.

        The delay counts from `began_s`, when the last message came: how long the check took depends on the user.
        """
        session = self._session
        self._failed.note(
            session.peer,
            "logins",
            logging.WARNING,
            "login from %s on listener %s with %s failed: %s",
            session.peer,
            session.listener_name,
            self._mechanism_name,
            reason,
        )
        self._audit(LOGIN_FAILED, **client_fields(session), mechanism=self._mechanism_name, reason=reason)
        await self._clock.sleep(max(0.0, began_s + self._security.failure_delay_s - self._clock.monotonic()))
        return ApiError(
            ErrorCode.SASL_AUTHENTICATION_FAILED,
            f"Authentication failed during authentication due to invalid credentials with SASL mechanism "
            f"{self._mechanism_name}",
        )

    def _may_begin_again(self) -> bool:
        if self.expires_at_s is None or self._mechanism is not None:
            return False
        return self._clock.monotonic() - self._logged_in_at_s >= REAUTHENTICATION_INTERVAL_S

    def _new(self, name: str) -> Mechanism:
        if name == "PLAIN":
            return Plain(self._security.users, self._credentials, self._session)
        if name == "OAUTHBEARER":
            assert self._credentials.tokens is not None
            return OAuthBearer(self._credentials.tokens, self._session)
        return Scram(MECHANISMS[name], self._credentials, self._session)
