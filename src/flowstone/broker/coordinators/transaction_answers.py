"""Error codes of the transaction coordinator as clients receive them, by API and version."""

from __future__ import annotations

from flowstone.coordinator.transactions.messages import error_for_version
from flowstone.errors import ErrorCode


def told(api_key: int, api_version: int, code: ErrorCode) -> ErrorCode:
    """Return the error code of a response in this API's version.

    A bug in the broker is reported as COORDINATOR_NOT_AVAILABLE: clients differ in how they handle
    UNKNOWN_SERVER_ERROR, and a client that does not know how its transaction ended must ask again.
    """
    if code is ErrorCode.UNKNOWN_SERVER_ERROR:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return error_for_version(api_key, api_version, code)
