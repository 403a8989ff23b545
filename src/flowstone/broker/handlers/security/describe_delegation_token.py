"""DescribeDelegationToken, versions 1 to 3: the tokens that the client may see, all or those of some owners.

Owners, requesters and renewers see a token. Others need DESCRIBE on the token, or DESCRIBE_TOKENS on its owner. Tokens
that have expired are not listed.
"""

from __future__ import annotations

from flowstone.authentication.delegation_tokens import DelegationToken
from flowstone.broker.handlers.security.token_requests import tokens_of, type_and_name
from flowstone.broker.loop.time_slices import TimeSlices
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.long_responses import encode_if_long
from flowstone.broker.requests.permissions import DELEGATION_TOKEN_DESCRIBE, USER_DESCRIBE_TOKENS
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.message import Message
from flowstone.wire.messages import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    DescribeDelegationTokenResponseDescribedDelegationToken,
    DescribeDelegationTokenResponseDescribedDelegationTokenRenewer,
)

Described = DescribeDelegationTokenResponseDescribedDelegationToken
Renewer = DescribeDelegationTokenResponseDescribedDelegationTokenRenewer

OWNERS_MAX = 1_000


async def handle(services: Services, context: RequestContext, request: DescribeDelegationTokenRequest) -> Message:
    tokens = tokens_of(services, context)
    if request.owners is not None and len(request.owners) > OWNERS_MAX:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{len(request.owners)} owners; the limit is {OWNERS_MAX}")
    owners = _principals(request)
    now_ms = services.clock.time_ms()
    slices = TimeSlices(services.clock.monotonic)
    known = services.metadata.image.delegation_tokens.values()
    found = [
        _described(token, tokens.hmac(token.token_id))
        async for token in slices.over(known)
        if token.is_valid(now_ms) and _is_asked(token, owners) and _may_see(services, context, token)
    ]
    elements = sum(1 + len(token.renewers) for token in found)
    return await encode_if_long(services, context, DescribeDelegationTokenResponse(tokens=found), elements, slices)


def _principals(request: DescribeDelegationTokenRequest) -> frozenset[str] | None:
    """Return the owners whose tokens are asked for; None: those of all."""
    if request.owners is None:
        return None
    return frozenset(f"{each.principal_type}:{each.principal_name}" for each in request.owners)


def _is_asked(token: DelegationToken, owners: frozenset[str] | None) -> bool:
    return owners is None or not owners.isdisjoint((token.owner, token.requester, *token.renewers))


def _may_see(services: Services, context: RequestContext, token: DelegationToken) -> bool:
    session, access = context.session, services.access
    if token.is_owned_or_renewed_by(str(session.principal)) or access is None:
        return True
    may_describe = access.may(session, DELEGATION_TOKEN_DESCRIBE, token.token_id)
    return may_describe or access.may(session, USER_DESCRIBE_TOKENS, token.owner)


def _described(token: DelegationToken, token_hmac: bytes) -> Described:
    owner_type, owner_name = type_and_name(token.owner)
    requester_type, requester_name = type_and_name(token.requester)
    renewers = [type_and_name(each) for each in token.renewers]
    return Described(
        principal_type=owner_type,
        principal_name=owner_name,
        token_requester_principal_type=requester_type,
        token_requester_principal_name=requester_name,
        issue_timestamp=token.issued_ms,
        expiry_timestamp=token.expires_ms,
        max_timestamp=token.max_ms,
        token_id=token.token_id,
        hmac=token_hmac,
        renewers=[Renewer(principal_type=kind, principal_name=name) for kind, name in renewers],
    )
