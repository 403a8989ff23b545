"""RenewDelegationToken, versions 1 and 2: put off a token's expiry, within its longest lifetime.

The owner and the renewers of a token may renew it.
"""

from __future__ import annotations

from flowstone.broker.handlers.security.token_requests import tokens_of
from flowstone.broker.requests.audit import client_fields
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.topics.metadata_changes import change
from flowstone.cluster.decisions.token_changes import renew_token
from flowstone.wire.messages import RenewDelegationTokenRequest, RenewDelegationTokenResponse


async def handle(
    services: Services, context: RequestContext, request: RenewDelegationTokenRequest
) -> RenewDelegationTokenResponse:
    tokens, session = tokens_of(services, context), context.session
    token_id, principal = tokens.id_of(bytes(request.hmac)), str(context.session.principal)
    period_ms, now_ms = request.renew_period_ms, services.clock.time_ms()
    expires_ms = await change(
        services, lambda image: renew_token(image, token_id, principal, period_ms, tokens.lifetimes, now_ms)
    )
    services.audit("token.renewed", **client_fields(session), token_id=token_id, expires_ms=expires_ms)
    return RenewDelegationTokenResponse(expiry_timestamp_ms=expires_ms)
