"""SASL OAUTHBEARER (RFC 7628) and the JWTs in it: messages, and which tokens are valid. Pure.

A token must be signed with one of the asymmetric algorithms in `ALGORITHMS`, by a key of the JWKS that its `kid` names,
and have the expected issuer and audience, an expiry in the future, and a subject. A token that is unsigned, or signed
with a public key as a shared secret, is refused because its algorithm is not in the list.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from flowstone.authentication.errors import LoginRefused

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA")
# What a client is told of a token that is not accepted; it answers with END_OF_FAILURE.
INVALID_TOKEN = json.dumps({"status": "invalid_token"}).encode()
END_OF_FAILURE = b"\x01"
TOKEN_CHARACTERS_MAX = 64 << 10
MESSAGE_BYTES_MAX = TOKEN_CHARACTERS_MAX + (4 << 10)  # the token, and extensions
EXPIRY_S_MAX = 1 << 40  # thirty thousand years
_SEPARATOR = "\x01"
_BEARER = "bearer "


class UnknownKey(LoginRefused):
    """The JWKS has no key of the token's `kid`: it may be older than the key."""


class Expectations(NamedTuple):
    """The claims that a token must have, and their required values."""

    issuer: str
    audiences: tuple[str, ...]
    subject_claim: str = "sub"
    skew_s: int = 30


class ValidToken(NamedTuple):
    user: str
    expires_at_ms: int


def parse_message(message: bytes) -> str:
    """Return the token in the client's first message. Raises LoginRefused if it is malformed."""
    if len(message) > MESSAGE_BYTES_MAX:
        raise LoginRefused(f"a message of {len(message)} bytes; the limit is {MESSAGE_BYTES_MAX}")
    try:
        header, *fields = message.decode().split(_SEPARATOR)
    except UnicodeDecodeError:
        raise LoginRefused("the message is not UTF-8") from None
    parts = header.split(",")
    if len(parts) != 3 or parts[0] not in ("n", "y") or parts[2] or fields[-2:] != ["", ""]:
        raise LoginRefused("the message is malformed, or asks for channel binding")
    if parts[1]:
        raise LoginRefused("the client asks to act as another user")
    found = [value for name, _, value in (field.partition("=") for field in fields) if name == "auth"]
    if len(found) != 1 or found[0][: len(_BEARER)].lower() != _BEARER:
        raise LoginRefused("the message has no bearer token")
    return found[0][len(_BEARER) :].strip()


def validate(token: str, keys: KeySet, expected: Expectations, now_s: int) -> ValidToken:
    """Return the token's user and expiry. Raises LoginRefused if it is not valid, and UnknownKey for an unknown key.

    The reasons contain no part of the token's signature.
    """
    from joserfc import jwt
    from joserfc.errors import JoseError

    _check_header(token, keys)
    claims = jwt.JWTClaimsRegistry(
        now=now_s,
        leeway=expected.skew_s,
        iss={"essential": True, "value": expected.issuer},
        aud={"essential": True, "values": list(expected.audiences)},
        exp={"essential": True},
    )
    try:
        found = jwt.decode(token, keys, algorithms=ALGORITHMS)
        claims.validate(found.claims)
    except (JoseError, ValueError, TypeError, KeyError) as error:
        raise LoginRefused(f"the token is not valid: {type(error).__name__}") from None
    user, expires_at_s = found.claims.get(expected.subject_claim), found.claims["exp"]
    if not isinstance(user, str) or not user:
        raise LoginRefused(f"the token has no claim {expected.subject_claim} with a user")
    if not 0 < expires_at_s < EXPIRY_S_MAX:  # also NaN, which is JSON for Python
        raise LoginRefused("the token's expiry is no time")
    return ValidToken(user, int(expires_at_s * 1000))


def _check_header(token: str, keys: KeySet) -> None:
    if len(token) > TOKEN_CHARACTERS_MAX or token.count(".") != 2:
        raise LoginRefused("the token is no signed JWT")
    header = _header(token)
    if header.get("alg") not in ALGORITHMS:
        raise LoginRefused("the token's algorithm is not allowed")
    if "crit" in header:
        raise LoginRefused("the token has critical header fields")
    known: Collection[Any] = keys.keys
    kid = header.get("kid")
    if kid is None and len(known) == 1:
        return
    if kid is None or all(key.kid != kid for key in known):
        raise UnknownKey("the token's key is not in the JWKS")


def _header(token: str) -> dict[str, Any]:
    encoded = token.partition(".")[0]
    try:
        header = json.loads(urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    except (ValueError, RecursionError):
        raise LoginRefused("the token's header is malformed") from None
    if not isinstance(header, dict):
        raise LoginRefused("the token's header is malformed")
    return header
