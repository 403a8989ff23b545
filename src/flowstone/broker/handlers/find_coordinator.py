"""FindCoordinator, versions 0 to 6; one key per request up to version 3, many from version 4 on.

Groups are not served yet: clients hear COORDINATOR_NOT_AVAILABLE and ask again, so that consumers with partitions of
their own choice go on undisturbed. Transactions are refused for good, for a client would otherwise retry for ever.
"""

from __future__ import annotations

from flowstone.broker.context import RequestContext, Services
from flowstone.errors import ErrorCode
from flowstone.wire.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FindCoordinatorResponseCoordinator,
)

GROUP, TRANSACTION, SHARE = 0, 1, 2
_MANY_KEYS_SINCE_VERSION = 4
_SHARE_SINCE_VERSION = 6
_NO_NODE, _NO_PORT = -1, -1


def handle(services: Services, context: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    error, message = _error(context, request.key_type)
    if context.api_version < _MANY_KEYS_SINCE_VERSION:
        return FindCoordinatorResponse(error_code=error, error_message=message, node_id=_NO_NODE, port=_NO_PORT)
    return FindCoordinatorResponse(
        coordinators=[
            FindCoordinatorResponseCoordinator(
                key=key, node_id=_NO_NODE, port=_NO_PORT, error_code=error, error_message=message
            )
            for key in request.coordinator_keys
        ]
    )


def _error(context: RequestContext, key_type: int) -> tuple[ErrorCode, str]:
    if key_type == GROUP:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE, "Consumer groups are not served yet."
    if key_type == TRANSACTION:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "Transactions are not served yet."
    if key_type == SHARE and context.api_version >= _SHARE_SINCE_VERSION:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE, "Share groups are not served yet."
    return ErrorCode.INVALID_REQUEST, f"There is no coordinator of type {key_type} in version {context.api_version}."
