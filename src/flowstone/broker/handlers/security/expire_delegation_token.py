"""ExpireDelegationToken, versions 1 and 2: let a token expire sooner, or at once with a negative period.

The owner and the renewers of a token may do so. Connections that logged in with it stay until their session ends.
"""

from __future__ import annotations

from flowstone.broker.handlers.security.token_requests import tokens_of
from flowstone.broker.requests.audit import client_fields
from flowstone.broker.requests.context import RequestContext, Services
from flowstone.broker.topics.metadata_changes import change
from flowstone.cluster.decisions.token_changes import expire_token
from flowstone.wire.messages import ExpireDelegationTokenRequest, ExpireDelegationTokenResponse


async def handle(
    services: Services, context: RequestContext, request: ExpireDelegationTokenRequest
) -> ExpireDelegationTokenResponse:
    tokens, session = tokens_of(services, context), context.session
    token_id, principal = tokens.id_of(bytes(request.hmac)), str(session.principal)
    period_ms, now_ms = request.expiry_time_period_ms, services.clock.time_ms()
    expires_ms = await change(services, lambda image: expire_token(image, token_id, principal, period_ms, now_ms))
    services.audit("token.expired", **client_fields(session), token_id=token_id, expires_ms=expires_ms)
    return ExpireDelegationTokenResponse(expiry_timestamp_ms=expires_ms)
