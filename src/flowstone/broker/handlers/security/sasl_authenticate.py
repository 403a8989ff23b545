"""SaslAuthenticate, versions 0 to 2: one message of the mechanism each way.

Since version 1 the last response tells how long the session lasts; the client logs in again before it ends. The
response to a failed login is delayed by `connection.failed.authentication.delay.ms`, and the connection is closed.
"""

from __future__ import annotations

from flowstone.broker.requests.context import RequestContext, Services
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.messages import SaslAuthenticateRequest, SaslAuthenticateResponse


async def handle(
    services: Services, context: RequestContext, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    session = context.session
    if session.login is None:
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message="this listener has no SASL"
        )
    try:
        answered = await session.login.authenticate(bytes(request.auth_bytes))
    except ApiError as error:
        session.end()
        return SaslAuthenticateResponse(error_code=error.code, error_message=error.message)
    return SaslAuthenticateResponse(
        error_message=None, auth_bytes=answered.challenge, session_lifetime_ms=answered.lifetime_ms
    )
