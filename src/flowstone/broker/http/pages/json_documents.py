"""JSON that clients post to pages, JSON of long answers, and JSON of errors: Kafka's code by name and a sentence."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from typing import Any

from flowstone.broker.http.page import Answer
from flowstone.errors import ApiError, ConfigError, ErrorCode, StorageFault

BAD_REQUEST = 400
_STATUS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 404,
    ErrorCode.OFFSET_OUT_OF_RANGE: 404,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: 403,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: 403,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: 403,
    ErrorCode.TOPIC_ALREADY_EXISTS: 409,
    ErrorCode.INCONSISTENT_CLUSTER_ID: 421,
    ErrorCode.POLICY_VIOLATION: 429,
    ErrorCode.KAFKA_STORAGE_ERROR: 503,
    ErrorCode.REQUEST_TIMED_OUT: 503,
    ErrorCode.BROKER_NOT_AVAILABLE: 503,
}
# The errors that handlers of pages may raise.
PageError = ApiError | ConfigError | StorageFault
PAGE_ERRORS = (ApiError, ConfigError, StorageFault)


def read_json(body: bytes) -> Any:
    """Return the value of the JSON in `body`. Raises ValueError if it is not JSON, or nested too deeply."""
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def encode_json(value: Any) -> Generator[None, None, str]:
    """Return JSON, made in steps for `time_slices.run_in_slices`: an iterator stands for an array, made step by step.

    Iterators may be elements of iterators, and values of the dict that `value` or such an element is.
    """
    if isinstance(value, Iterator):
        elements = []
        for each in value:
            elements.append((yield from encode_json(each)))
            yield
        return f"[{', '.join(elements)}]"
    if isinstance(value, dict) and any(isinstance(each, Iterator) for each in value.values()):
        members = []
        for name, each in value.items():
            encoded = yield from encode_json(each)
            members.append(f"{json.dumps(name)}: {encoded}")
        return f"{{{', '.join(members)}}}"
    return json.dumps(value)


def error_answer(error: PageError) -> Answer:
    """Return the answer to a request that failed: JSON, with the HTTP status that comes nearest to the error's code."""
    match error:
        case ApiError(code=code, message=message):
            pass
        case ConfigError():
            code, message = ErrorCode.INVALID_CONFIG, str(error)
        case StorageFault():
            code, message = ErrorCode.KAFKA_STORAGE_ERROR, str(error)
    document = {"error": code.name, "message": message or code.name}
    return Answer(json.dumps(document).encode(), _STATUS.get(code, BAD_REQUEST))
