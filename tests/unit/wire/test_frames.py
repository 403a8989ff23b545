"""Request and response headers."""

from __future__ import annotations

import pytest

from flowstone.errors import ProtocolError
from flowstone.wire import frames
from flowstone.wire.apis import API_VERSIONS_KEY, APIS

PRODUCE = 0
UNKNOWN_API = 999


@pytest.mark.parametrize("client_id", [None, "", "rdkafka", "käfka"])
@pytest.mark.parametrize(
    ("api_key", "version"), [(PRODUCE, 8), (PRODUCE, 9), (API_VERSIONS_KEY, 0), (API_VERSIONS_KEY, 3)]
)
def test_a_request_header_survives_encoding_and_parsing(api_key, version, client_id):
    encoded = frames.encode_request_header(api_key, version, -5, client_id)
    header = frames.parse_request_header(memoryview(b"size" + encoded), 4)
    assert header == (api_key, version, -5, client_id, 4 + len(encoded))


def test_the_client_id_is_not_compact_in_a_flexible_header():
    assert frames.encode_request_header(PRODUCE, 9, 1, "ab") == b"\x00\x00\x00\x09\x00\x00\x00\x01\x00\x02ab\x00"


def test_tagged_fields_of_the_header_are_skipped():
    encoded = frames.encode_request_header(PRODUCE, 9, 1, "ab")[:-1] + b"\x01\x05\x02hi"
    assert frames.parse_request_header(memoryview(encoded + b"body"), 0).body_position == len(encoded)


def test_api_versions_of_a_future_version_can_still_be_answered():
    encoded = frames.encode_request_header(API_VERSIONS_KEY, 99, 7, "x")
    header = frames.parse_request_header(memoryview(encoded), 0)
    assert (header.api_version, header.correlation_id) == (99, 7)


def test_an_unknown_api_is_read_as_not_flexible():
    frame = b"\x03\xe7\x00\x00\x00\x00\x00\x01\x00\x01x"
    header = frames.parse_request_header(memoryview(frame), 0)
    assert (header.api_key, header.client_id, header.body_position) == (UNKNOWN_API, "x", len(frame))


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x00\x00\x00\x03\x00\x00\x00\x01\x00", id="truncated"),
        pytest.param(b"\x00\x00\x00\x03\x00\x00\x00\x01\x00\x05ab", id="truncated client id"),
        pytest.param(b"\x00\x00\x00\x03\x00\x00\x00\x01\xff\xfe", id="negative client id length"),
        pytest.param(b"\x00\x00\x00\x03\x00\x00\x00\x01\x00\x01\xff", id="not UTF-8"),
        pytest.param(b"\x00\x00\x00\x09\x00\x00\x00\x01\xff\xff", id="no tag section"),
        pytest.param(b"\x00\x00\x00\x09\x00\x00\x00\x01\xff\xff\xff\xff\xff\xff\x0f", id="4 G tags"),
    ],
)
def test_a_malformed_request_header_is_refused(frame):
    with pytest.raises(ProtocolError):
        frames.parse_request_header(memoryview(frame), 0)


@pytest.mark.parametrize("flexible", [False, True])
def test_a_response_header_survives_encoding_and_parsing(flexible):
    encoded = frames.response_header(77, flexible)
    assert len(encoded) == (5 if flexible else 4)
    assert frames.parse_response_header(memoryview(encoded + b"body"), 0, flexible) == (77, len(encoded))


@pytest.mark.parametrize("frame", [b"", b"\x00\x00\x00", b"\x00\x00\x00\x01"])
def test_a_truncated_response_header_is_refused(frame):
    with pytest.raises(ProtocolError):
        frames.parse_response_header(memoryview(frame), 0, flexible=True)


def test_the_api_versions_response_header_is_never_flexible():
    flexible = {api.name for api in APIS.values() if api.has_flexible_response_header(api.max_version)}
    assert flexible == {api.name for api in APIS.values() if api.is_flexible(api.max_version)} - {"ApiVersions"}
