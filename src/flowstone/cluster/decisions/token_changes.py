"""Decides requests to create, renew and expire delegation tokens: pure, with Kafka's errors."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

from flowstone.authentication.delegation_tokens import DelegationToken
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.records import DelegationTokensChanged, MetadataRecord
from flowstone.errors import ApiError, ErrorCode

# Every broker has all tokens in memory.
TOKENS_MAX = 20_000
# Tokens of one owner that have not expired: any user may create some without a permission.
TOKENS_PER_OWNER_MAX = 1_000
RENEWERS_MAX = 20
PRINCIPAL_CHARACTERS_MAX = 255
# Expired tokens that one change removes.
REMOVED_AT_ONCE_MAX = 1_000


class TokenLifetimes(NamedTuple):
    """The settings of tokens' lifetimes."""

    max_ms: int
    expiry_ms: int


class NewToken(NamedTuple):
    """The properties of a requested token; a lifetime of 0 or less means the maximum."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    lifetime_ms: int


def create_token(
    image: ClusterImage, wanted: NewToken, lifetimes: TokenLifetimes, now_ms: int
) -> tuple[list[MetadataRecord], DelegationToken]:
    """Return the records that add a token, and the token. Raises ApiError if there are too many."""
    tokens = image.delegation_tokens
    if len(wanted.renewers) > RENEWERS_MAX:
        raise ApiError(ErrorCode.POLICY_VIOLATION, f"A token has at most {RENEWERS_MAX} renewers.")
    if any(len(each) > PRINCIPAL_CHARACTERS_MAX for each in (wanted.owner, *wanted.renewers)):
        raise ApiError(
            ErrorCode.POLICY_VIOLATION, f"A principal of a token has at most {PRINCIPAL_CHARACTERS_MAX} characters."
        )
    owned, expired = 0, []
    for token_id, owner, _requester, _renewers, _issued_ms, token_max_ms, expires_ms in tokens.values():
        if now_ms > expires_ms or now_ms > token_max_ms:  # as `is_valid`, which would take three times as long
            expired.append(token_id)
        elif owner == wanted.owner:
            owned += 1
    if len(tokens) - len(expired) >= TOKENS_MAX:
        raise ApiError(ErrorCode.POLICY_VIOLATION, f"There are {TOKENS_MAX} delegation tokens, the most allowed.")
    if owned >= TOKENS_PER_OWNER_MAX:
        raise ApiError(
            ErrorCode.POLICY_VIOLATION, f"{wanted.owner} has {TOKENS_PER_OWNER_MAX} tokens, the most allowed."
        )
    max_ms = now_ms + _within(wanted.lifetime_ms, lifetimes.max_ms)
    token = DelegationToken(
        *wanted[:4], issued_ms=now_ms, max_ms=max_ms, expires_ms=min(max_ms, now_ms + lifetimes.expiry_ms)
    )
    return [DelegationTokensChanged((token,), tuple(expired[:REMOVED_AT_ONCE_MAX]))], token


def renew_token(
    image: ClusterImage, token_id: str, principal: str, period_ms: int, lifetimes: TokenLifetimes, now_ms: int
) -> tuple[list[MetadataRecord], int]:
    """Return the records that renew a token, and its new expiry. Raises ApiError if the principal may not."""
    token = _found(image, token_id)
    _check_valid(token, now_ms)
    _check_renewer(token, principal)
    expires_ms = min(token.max_ms, now_ms + _within(period_ms, lifetimes.expiry_ms))
    return [_changed(token._replace(expires_ms=expires_ms))], expires_ms


def expire_token(
    image: ClusterImage, token_id: str, principal: str, period_ms: int, now_ms: int
) -> tuple[list[MetadataRecord], int]:
    """Return the records that change a token's expiry, and the new one; a negative period removes the token.

    Raises ApiError if the principal may not.
    """
    token = _found(image, token_id)
    _check_renewer(token, principal)
    if period_ms < 0:
        return [DelegationTokensChanged((), (token_id,))], now_ms
    _check_valid(token, now_ms)
    expires_ms = min(token.max_ms, now_ms + period_ms)
    return [_changed(token._replace(expires_ms=expires_ms))], expires_ms


def remove_expired(image: ClusterImage, now_ms: int) -> tuple[list[MetadataRecord], int]:
    """Return the records that remove expired tokens, at most REMOVED_AT_ONCE_MAX, and their number."""
    expired = _expired(image.delegation_tokens, now_ms)
    return [DelegationTokensChanged((), tuple(expired))] if expired else [], len(expired)


def _expired(tokens: Mapping[str, DelegationToken], now_ms: int) -> list[str]:
    expired = (token_id for token_id, token in tokens.items() if not token.is_valid(now_ms))
    return list(islice(expired, REMOVED_AT_ONCE_MAX))


def _changed(token: DelegationToken) -> DelegationTokensChanged:
    return DelegationTokensChanged((token,), ())


def _within(wanted_ms: int, max_ms: int) -> int:
    return min(wanted_ms, max_ms) if wanted_ms > 0 else max_ms


def _found(image: ClusterImage, token_id: str) -> DelegationToken:
    token = image.delegation_tokens.get(token_id)
    if token is None:
        raise ApiError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    return token


def _check_renewer(token: DelegationToken, principal: str) -> None:
    if not token.may_renew(principal):
        raise ApiError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)


def _check_valid(token: DelegationToken, now_ms: int) -> None:
    if not token.is_valid(now_ms):
        raise ApiError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
