"""SaslHandshake, versions 0 and 1: choose a mechanism of the listener's.

After version 0 the mechanism's messages follow without requests around them. A listener without SASL answers
ILLEGAL_SASL_STATE. After a failure the connection is closed, except for one that is logged in, as in Kafka.
"""

from __future__ import annotations

from flowstone.broker.requests.context import RequestContext, Services
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.messages import SaslHandshakeRequest, SaslHandshakeResponse


async def handle(services: Services, context: RequestContext, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    session = context.session
    login = session.login
    if login is None:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    try:
        login.handshake(request.mechanism, is_raw=context.api_version == 0)
    except ApiError as error:
        session.end()
        return SaslHandshakeResponse(error_code=error.code, mechanisms=list(login.mechanisms))
    return SaslHandshakeResponse(mechanisms=list(login.mechanisms))
