"""Request and response headers: the part of a frame before the body.

The connection reads the frame's size prefix. A request header has version 1, or 2 (with tagged fields) if the API's
version is flexible; its `client_id` is never a compact string. A response header has version 0, or 1 if flexible,
except that ApiVersions always uses 0 (see `Api.has_flexible_response_header`).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from flowstone.errors import ProtocolError
from flowstone.wire.apis import APIS
from flowstone.wire.primitives import skip_tags

_FIXED = struct.Struct(">hhih")
_CORRELATION_ID = struct.Struct(">i")
_CORRELATION_ID_AND_NO_TAGS = struct.Struct(">ix")
_NULL_LENGTH = -1
_NEVER_FLEXIBLE = 1 << 15
_FLEXIBLE_FROM = {api.key: api.flexible_from for api in APIS.values()}


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int


def parse_request_header(view: memoryview, position: int) -> RequestHeader:
    """Parse the header that starts at `position`.

    The version may be unknown: ApiVersions must be answered, and other requests refused, by their header alone. A
    header of an unknown API is parsed as not flexible; its body cannot be parsed anyway.
    """
    try:
        api_key, api_version, correlation_id, length = _FIXED.unpack_from(view, position)
        position += _FIXED.size
        client_id = None
        if length != _NULL_LENGTH:
            end = position + length
            if not position <= end <= len(view):
                raise ProtocolError(f"client_id: bad length {length}")
            client_id = str(view[position:end], "utf-8")
            position = end
        if api_version >= _FLEXIBLE_FROM.get(api_key, _NEVER_FLEXIBLE):
            position = position + 1 if view[position] == 0 else skip_tags(view, position)
    except (struct.error, IndexError, ValueError) as error:
        raise ProtocolError(f"request header: {error}") from error
    return RequestHeader(api_key, api_version, correlation_id, client_id, position)


def encode_request_header(api_key: int, api_version: int, correlation_id: int, client_id: str | None) -> bytes:
    text = b"" if client_id is None else client_id.encode()
    length = _NULL_LENGTH if client_id is None else len(text)
    tags = b"\0" if api_version >= _FLEXIBLE_FROM[api_key] else b""
    return _FIXED.pack(api_key, api_version, correlation_id, length) + text + tags


def response_header(correlation_id: int, flexible: bool) -> bytes:
    return (_CORRELATION_ID_AND_NO_TAGS if flexible else _CORRELATION_ID).pack(correlation_id)


def parse_response_header(view: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    """Return the correlation id and the position of the body."""
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(view, position)
        position += _CORRELATION_ID.size
        if flexible:
            position = position + 1 if view[position] == 0 else skip_tags(view, position)
        return correlation_id, position
    except (struct.error, IndexError) as error:
        raise ProtocolError(f"response header: {error}") from error
