"""Shared code of the requests about delegation tokens: who may send them, and principals as text."""

from __future__ import annotations

from flowstone.authentication.delegation_tokens import USER_PREFIX
from flowstone.broker.authentication.token_registry import TokenRegistry
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.session import ANONYMOUS
from flowstone.errors import ApiError, ErrorCode

USER_TYPE = USER_PREFIX.rstrip(":")


def tokens_of(services: Services, context: RequestContext) -> TokenRegistry:
    """Return the tokens. Raises ApiError if there are none, or for a client that may not ask for any.

    A client that logged in with a token may not: a stolen token would otherwise give others. Neither may a client of a
    PLAINTEXT listener, or one of an SSL listener that has no certificate.
    """
    session = context.session
    is_unknown = session.protocol == "SSL" and session.principal == ANONYMOUS
    if session.token_id or session.protocol == "PLAINTEXT" or is_unknown:
        raise ApiError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    if services.delegation_tokens is None:
        raise ApiError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    return services.delegation_tokens


def type_and_name(principal: str) -> tuple[str, str]:
    """Return the two parts of a principal such as `User:alice`."""
    kind, _, name = principal.partition(":")
    return kind, name
