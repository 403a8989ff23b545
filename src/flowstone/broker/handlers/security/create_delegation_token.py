"""CreateDelegationToken, versions 1 to 3: a token that stands for its owner, by default the client itself.

Since version 3 a client may name another owner, which needs the operation CREATE_TOKENS on that user. Unlike in Kafka,
an owner must be of the type User, as renewers must, and there are limits on the number of tokens.
"""

from __future__ import annotations

import logging
from secrets import token_urlsafe

from flowstone.authentication.delegation_tokens import DelegationToken
from flowstone.broker.handlers.security.token_requests import USER_TYPE, tokens_of, type_and_name
from flowstone.broker.requests.audit import client_fields
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.requests.permissions import USER_CREATE_TOKENS
from flowstone.broker.topics.metadata_changes import change
from flowstone.cluster.decisions.token_changes import NewToken, create_token
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.messages import CreateDelegationTokenRequest, CreateDelegationTokenResponse

logger = logging.getLogger(__name__)

ID_BYTES = 16


async def handle(
    services: Services, context: RequestContext, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse:
    requester = str(context.session.principal)
    owner = f"{request.owner_principal_type}:{request.owner_principal_name}"
    if not request.owner_principal_name:
        owner = requester
    response = _response(owner, requester)
    try:
        token = await _create(services, context, request, owner)
        response.hmac = tokens_of(services, context).hmac(token.token_id)
    except ApiError as error:
        response.error_code = error.code
        return response
    response.token_id = token.token_id
    response.issue_timestamp_ms, response.max_timestamp_ms = token.issued_ms, token.max_ms
    response.expiry_timestamp_ms = token.expires_ms
    return response


async def _create(
    services: Services, context: RequestContext, request: CreateDelegationTokenRequest, owner: str
) -> DelegationToken:
    session, access = context.session, services.access
    tokens, requester = tokens_of(services, context), str(context.session.principal)
    if owner != requester and access is not None and not access.check(session, USER_CREATE_TOKENS, owner):
        raise ApiError(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
    if any(each.principal_type != USER_TYPE for each in request.renewers) or type_and_name(owner)[0] != USER_TYPE:
        raise ApiError(ErrorCode.INVALID_PRINCIPAL_TYPE)
    renewers = tuple(f"{each.principal_type}:{each.principal_name}" for each in request.renewers)
    wanted = NewToken(token_urlsafe(ID_BYTES), owner, requester, renewers, request.max_lifetime_ms)
    now_ms = services.clock.time_ms()
    token = await change(services, lambda image: create_token(image, wanted, tokens.lifetimes, now_ms))
    services.audit("token.created", **client_fields(session), token_id=token.token_id, owner=owner, renewers=renewers)
    logger.info("%s from %s created a delegation token of %s", requester, session.peer, owner)
    return token


def _response(owner: str, requester: str) -> CreateDelegationTokenResponse:
    owner_type, owner_name = type_and_name(owner)
    requester_type, requester_name = type_and_name(requester)
    return CreateDelegationTokenResponse(
        principal_type=owner_type,
        principal_name=owner_name,
        token_requester_principal_type=requester_type,
        token_requester_principal_name=requester_name,
    )
