from __future__ import annotations

import pytest

from flowstone.client.errors import BadAnswer, ClientError
from flowstone.client.wire_session import (
    API_VERSIONS_KEY,
    API_VERSIONS_VERSION,
    RESPONSE_BYTES_MAX,
    WireSession,
    decode,
    frame_size,
)
from flowstone.errors import ErrorCode, ProtocolError
from flowstone.wire.apis import APIS
from flowstone.wire.codec import response_encoder
from flowstone.wire.messages import (
    ApiVersionsResponse,
    ApiVersionsResponseApiVersion,
    HeartbeatRequest,
    HeartbeatResponse,
)

HEARTBEAT = next(api for api in APIS.values() if api.request is HeartbeatRequest)


def session(served: tuple[int, int] = (0, 4), known: tuple[int, int] = (0, 4)) -> WireSession:
    made = WireSession("broker:9092", "client", lambda _: known, ": ask another")
    api_key = ApiVersionsResponseApiVersion(api_key=HEARTBEAT.key, min_version=served[0], max_version=served[1])
    made.agree(ApiVersionsResponse(api_keys=[api_key]))
    return made


def request() -> HeartbeatRequest:
    return HeartbeatRequest(group_id="g", member_id="m")


def frame(correlation_id: int, version: int = 0) -> memoryview:
    body = response_encoder(HEARTBEAT.key, version)(HeartbeatResponse(error_code=7))
    return memoryview(correlation_id.to_bytes(4, "big") + b"".join(body))


@pytest.mark.parametrize(
    ("served", "known", "version"), [((0, 4), (0, 2), 2), ((0, 1), (0, 4), 1), ((3, 9), (0, 4), 4)]
)
def test_a_request_has_the_newest_version_that_both_sides_have(
    served: tuple[int, int], known: tuple[int, int], version: int
) -> None:
    assert session(served, known).encode(request())[0].version == version


@pytest.mark.parametrize(("served", "known"), [((3, 4), (0, 2)), ((0, 2), (3, 4))])
def test_an_api_without_a_common_version_is_refused(served: tuple[int, int], known: tuple[int, int]) -> None:
    expected = f"broker:9092 has no version of Heartbeat between {known[0]} and {known[1]}: ask another"
    with pytest.raises(BadAnswer, match=expected):
        session(served, known).encode(request())


def test_requests_are_numbered() -> None:
    numbering = session()
    assert [numbering.encode(request())[0].correlation_id for _ in range(3)] == [1, 2, 3]


def test_the_size_in_front_of_a_request_is_that_of_the_rest() -> None:
    data = b"".join(session().encode(request())[1])
    assert frame_size(memoryview(data)) == len(data) - 4


def test_a_response_is_decoded_in_the_version_of_its_request() -> None:
    sent, _ = session((0, 0)).encode(request())
    response = decode(sent, frame(sent.correlation_id))
    assert isinstance(response, HeartbeatResponse)
    assert response.error_code == 7


def test_a_response_to_another_request_is_refused() -> None:
    sent, _ = session((0, 0)).encode(request())
    with pytest.raises(ProtocolError, match=f"the answer to request 9 came for {sent.correlation_id}"):
        decode(sent, frame(9))


@pytest.mark.parametrize("size_bytes", [-1, 3, RESPONSE_BYTES_MAX + 1])
def test_a_response_of_absurd_size_is_refused(size_bytes: int) -> None:
    with pytest.raises(ProtocolError, match=f"a response of {size_bytes} bytes"):
        frame_size(memoryview(size_bytes.to_bytes(4, "big", signed=True)))


def test_versions_are_asked_for_in_the_oldest_version_once_the_newest_is_refused() -> None:
    asking = WireSession("broker:9092", "client", lambda _: (0, 4), "")
    assert asking.encode(asking.versions_request())[0].version == API_VERSIONS_VERSION
    asking.ask_oldest_versions()
    assert asking.encode(asking.versions_request())[0].version == 0


def test_versions_that_are_asked_for_again_are_asked_for_in_the_newest_version_of_both() -> None:
    asking = session()
    newest = API_VERSIONS_VERSION + 1
    served = ApiVersionsResponseApiVersion(api_key=API_VERSIONS_KEY, min_version=0, max_version=newest)
    asking.agree(ApiVersionsResponse(api_keys=[served]))
    assert asking.encode(asking.versions_request())[0].version == newest


def test_a_broker_that_does_not_tell_its_versions_is_refused() -> None:
    with pytest.raises(BadAnswer, match="does not list its versions: error 29"):
        session().agree(ApiVersionsResponse(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED))


def test_a_number_that_does_not_fit_its_field_is_refused() -> None:
    with pytest.raises(ClientError, match="HeartbeatRequest: a number does not fit its field"):
        session().encode(HeartbeatRequest(group_id="g", generation_id=2**40, member_id="m"))
