"""Errors on pages of JSON: Kafka's code by name, a sentence, and the HTTP status that comes nearest."""

from __future__ import annotations

import json

from flowstone.errors import ApiError, ErrorCode

BAD_REQUEST = 400
_STATUS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 404,
    ErrorCode.OFFSET_OUT_OF_RANGE: 404,
    ErrorCode.TOPIC_ALREADY_EXISTS: 409,
    ErrorCode.INCONSISTENT_CLUSTER_ID: 421,
    ErrorCode.POLICY_VIOLATION: 429,
    ErrorCode.KAFKA_STORAGE_ERROR: 503,
    ErrorCode.REQUEST_TIMED_OUT: 503,
    ErrorCode.BROKER_NOT_AVAILABLE: 503,
}


def error_answer(error: ApiError) -> tuple[int, bytes]:
    """The HTTP status and the JSON."""
    told = {"error": error.code.name, "message": error.message or error.code.name}
    return _STATUS.get(error.code, BAD_REQUEST), json.dumps(told).encode()
