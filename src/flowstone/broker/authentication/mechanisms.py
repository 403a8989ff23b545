"""The server's side of each SASL mechanism: messages of the client in, challenges and the user out.

A mechanism is made for one login. `step` raises LoginRefused, with a reason for the broker's log, and ValueError for
malformed messages. Work of milliseconds runs in a worker thread.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from secrets import token_hex
from typing import NamedTuple, Protocol

from flowstone.authentication import plain
from flowstone.authentication.delegation_tokens import TOKEN_EXTENSION
from flowstone.authentication.errors import LoginRefused
from flowstone.authentication.invented_credentials import InventedCredentials
from flowstone.authentication.oauthbearer import END_OF_FAILURE, INVALID_TOKEN, parse_message
from flowstone.authentication.scram import (
    NONCE_CHARACTERS,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    has_password,
)
from flowstone.broker.authentication.jwks import TokenVerifier
from flowstone.broker.authentication.token_registry import TokenRegistry
from flowstone.broker.loop.login_checks import Asker
from flowstone.broker.loop.workers import Workers


class Authenticated(NamedTuple):
    """The outcome of a login."""

    user: str
    # The end of the credential's validity in ms since the epoch, after which the session ends; None: it has none.
    expires_at_ms: int | None = None
    # The delegation token that was used.
    token_id: str = ""


class Step(NamedTuple):
    """A message to the client, and the outcome if the login is complete."""

    challenge: bytes
    outcome: Authenticated | None = None


class Mechanism(Protocol):
    async def step(self, message: bytes) -> Step: ...


@dataclass(frozen=True, slots=True)
class Credentials:
    """The users that login mechanisms can look up."""

    scram: Callable[[], Mapping[tuple[str, ScramMechanism], ScramCredential]]
    # Of users who do not exist.
    invented: InventedCredentials
    workers: Workers
    # Of listeners with OAUTHBEARER.
    tokens: TokenVerifier | None = None
    # None: delegation tokens are not enabled.
    delegation: TokenRegistry | None = None


class Plain:
    """The mechanism PLAIN: compares the password with the settings' one, or checks it against a SCRAM credential."""

    def __init__(self, users: Mapping[str, str], credentials: Credentials, asker: Asker) -> None:
        self._users, self._credentials, self._asker = users, credentials, asker

    async def step(self, message: bytes) -> Step:
        user, password = plain.parse(message)
        expected = self._users.get(user)
        if expected is not None:
            if not hmac.compare_digest(expected.encode(), password.encode()):
                raise LoginRefused(f"the password of {user} is wrong")
            return Step(b"", Authenticated(user))
        if await self._credentials.workers.check_login(self._check(user, password), self._asker):
            return Step(b"", Authenticated(user))
        raise LoginRefused(f"the password of {user} is wrong, or there is no such user")

    def _check(self, user: str, password: str) -> Callable[[], bool]:
        """Return a function that checks the password. It takes as long for a user who does not exist."""
        stored = self._credentials.scram()
        for mechanism in (ScramMechanism.SHA_512, ScramMechanism.SHA_256):
            credential = stored.get((user, mechanism))
            if credential is not None:
                break
        else:
            mechanism = ScramMechanism.SHA_512
            credential = self._credentials.invented.of_user(mechanism, user)
        return lambda: has_password(mechanism, credential, password)


class Scram:
    """SCRAM-SHA-256 and SCRAM-SHA-512: two messages each way. The user may be the id of a delegation token."""

    def __init__(self, mechanism: ScramMechanism, credentials: Credentials, asker: Asker) -> None:
        self._mechanism, self._credentials, self._asker = mechanism, credentials, asker
        self._server: ScramServer | None = None

    async def step(self, message: bytes) -> Step:
        if self._server is None:
            self._server = server = ScramServer(self._mechanism, token_hex(NONCE_CHARACTERS // 2))
            server.parse_first(message)
            return Step(server.challenge(await self._credential(server)))
        proof = self._server.final(message)
        return Step(proof, self._outcome(self._server))

    async def _credential(self, server: ScramServer) -> ScramCredential:
        mechanism, user, credentials = self._mechanism, server.user, self._credentials
        if not _is_token(server):
            return credentials.scram().get((user, mechanism)) or credentials.invented.of_user(mechanism, user)
        delegation = credentials.delegation
        found = None if delegation is None else await delegation.credential(mechanism, user, self._asker)
        return found or credentials.invented.of_token(mechanism, user)

    def _outcome(self, server: ScramServer) -> Authenticated:
        if not _is_token(server):
            return Authenticated(server.user)
        delegation = self._credentials.delegation
        token = None if delegation is None else delegation.valid(server.user)
        if token is None:
            raise LoginRefused("the delegation token has expired or was removed")
        return Authenticated(token.user, token.expires_ms, token.token_id)


def _is_token(server: ScramServer) -> bool:
    return server.extensions.get(TOKEN_EXTENSION, "").lower() == "true"


class OAuthBearer:
    """The mechanism OAUTHBEARER: one message with a token. The reason of a refusal follows a second message."""

    def __init__(self, tokens: TokenVerifier, asker: Asker) -> None:
        self._tokens, self._asker = tokens, asker
        self._refused: LoginRefused | None = None

    async def step(self, message: bytes) -> Step:
        if self._refused is not None:
            if message != END_OF_FAILURE:
                raise LoginRefused("the client did not end its failed login")
            raise self._refused
        try:
            valid = await self._tokens.verify(parse_message(message), self._asker)
        except LoginRefused as error:
            self._refused = error
            return Step(INVALID_TOKEN)
        return Step(b"", Authenticated(valid.user, valid.expires_at_ms))
