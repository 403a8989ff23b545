"""Delegation tokens (KIP-48): what a token is, its password, and who may renew it. Pure.

A token stands for its owner until it expires. Its password is an HMAC of its id with a secret that all brokers share
(`delegation.token.secret.key`), so that nothing stored about a token lets anyone log in with it.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from typing import NamedTuple

from flowstone.authentication.scram import (
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    credential_of,
    salt_text,
    salted_password,
)

# The extension of a client's first SCRAM message that says that its user is a token's id.
TOKEN_EXTENSION = "tokenauth"
USER_PREFIX = "User:"


class DelegationToken(NamedTuple):
    """The properties of a delegation token that brokers store; principals are text such as `User:alice`."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    max_ms: int
    expires_ms: int

    def is_valid(self, now_ms: int) -> bool:
        return now_ms <= min(self.expires_ms, self.max_ms)

    def is_owned_or_renewed_by(self, principal: str) -> bool:
        return principal in (self.owner, self.requester) or principal in self.renewers

    def may_renew(self, principal: str) -> bool:
        return principal == self.owner or principal in self.renewers

    @property
    def user(self) -> str:
        """Return the name of the user for whom the token stands."""
        return self.owner.removeprefix(USER_PREFIX)


class TokenSecret:
    """The secret that brokers share, from which the passwords of tokens follow. Shows nothing of it."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def hmac(self, token_id: str) -> bytes:
        return hmac.digest(self._secret, token_id.encode(), "sha512")

    def credential(self, mechanism: ScramMechanism, token_id: str) -> ScramCredential:
        """Return the SCRAM credential of a token; takes milliseconds, without the interpreter's lock."""
        salt = salt_text(hmac.digest(self._secret, f"salt {mechanism.sasl_name} {token_id}".encode(), "sha512"))
        salted = salted_password(mechanism, password_of(self.hmac(token_id)), salt, ITERATIONS_MIN)
        return credential_of(mechanism, salted, salt, ITERATIONS_MIN)


def password_of(token_hmac: bytes) -> str:
    """Return the password with which a client logs in with the token."""
    return b64encode(token_hmac).decode()
