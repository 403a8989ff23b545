"""The throttle time in a response: for how long its connection is still muted when the response is encoded.

Every response that has a `throttle_time_ms` field in its version carries it. In a pre-encoded response the field is the
first, and its four bytes are replaced.
"""

from __future__ import annotations

from functools import cache
from struct import Struct

from flowstone.broker.requests.encoded_response import EncodedResponse
from flowstone.wire.message import Message
from flowstone.wire.schema import load_api

FIELD = "throttle_time_ms"
_INT32 = Struct(">i")


@cache
def has_throttle_time(api_name: str, version: int) -> bool:
    """Return whether this version of the API's response has the throttle time field."""
    return any(field.name == FIELD for field in load_api(api_name).response.plain_fields(version))


@cache
def begins_with_throttle_time(api_name: str, version: int) -> bool:
    """Return whether the throttle time is the first field of this version of the API's response."""
    return load_api(api_name).response.plain_fields(version)[0].name == FIELD


def with_throttle_time(response: Message, api_name: str, version: int, throttle_ms: int) -> Message:
    """Return the response with this throttle time, if its version has the field.

    An encoded response that does not begin with the field, such as those about delegation tokens, is returned as it is:
    the session is muted in any case.
    """
    if isinstance(response, EncodedResponse):
        if not begins_with_throttle_time(api_name, version):
            return response
        first, *others = response.chunks  # may be shared with other responses
        return EncodedResponse([_INT32.pack(throttle_ms), memoryview(first)[_INT32.size :], *others], response.errors)
    setattr(response, FIELD, throttle_ms)
    return response
