"""The throttle time in responses: every API and version that has the field, encoded by dispatch and encoded before."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from flowstone.broker.dispatch.registry import ENDPOINTS
from flowstone.broker.dispatch.throttle_times import with_throttle_time
from flowstone.broker.requests.context import Handler, RequestContext, Services
from flowstone.broker.requests.encoded_response import EncodedResponse
from flowstone.broker.requests.session import ClientSession
from flowstone.wire.apis import APIS
from flowstone.wire.codec import request_encoder, response_decoder, response_encoder
from flowstone.wire.frames import encode_request_header, parse_response_header
from flowstone.wire.messages import (
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
    MetadataRequest,
)
from tests.support.running_app import RunningApp

THROTTLE_MS, MUTE_MS = 20_000, 300
SERVED = [
    pytest.param(key, version, id=f"{APIS[key].name}-{version}")
    for key, endpoint in ENDPOINTS.items()
    for version in range(endpoint.min_version, endpoint.max_version + 1)
]
# The APIs some of whose handlers give encoded responses.
ENCODED = frozenset(
    ("Metadata", "OffsetCommit", "OffsetFetch", "DescribeConfigs", "DescribeGroups", "DescribeLogDirs", "CreateTopics")
)


class Answering:
    """Handlers that throttle each request's session, and give an empty response where `is_empty` says so."""

    def __init__(self) -> None:
        self.throttle_ms, self.is_empty, self.is_encoded = 0, True, False

    def intercept(self, api_name: str, handler: Handler) -> Handler:
        def handle(services: Services, context: RequestContext, request: Any) -> Any:
            if self.throttle_ms:
                context.session.throttle(services.clock.monotonic(), self.throttle_ms)
            if not self.is_empty:
                return handler(services, context, request)
            response = APIS[context.api_key].response()
            if not self.is_encoded:
                return response
            return EncodedResponse(response_encoder(context.api_key, context.api_version)(response), Counter())

        return handle


@pytest.fixture(scope="module")
def answering() -> Answering:
    return Answering()


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory, answering: Answering) -> Iterator[RunningApp]:
    with RunningApp(str(tmp_path_factory.mktemp("data")), intercept=answering.intercept) as running:
        yield running


@pytest.fixture
def dispatch(app: RunningApp, answering: Answering) -> Any:
    """Return a function that gives the frame of dispatch's response to an empty request of an API and version."""

    def answer(key: int, version: int, throttle_ms: int, *, is_encoded: bool = False) -> bytes:
        answering.throttle_ms, answering.is_empty, answering.is_encoded = throttle_ms, True, is_encoded
        body = b"".join(request_encoder(key, version)(APIS[key].request()))
        frame = memoryview(encode_request_header(key, version, 7, "client") + body)
        chunks = app.call(lambda: app.app._server.answer(frame, ClientSession("PLAINTEXT", "127.0.0.1:1")))
        return b"".join(chunks)

    return answer


def body_of(key: int, version: int, frame: bytes) -> bytes:
    _, at = parse_response_header(memoryview(frame), 4, APIS[key].has_flexible_response_header(version))
    return frame[at:]


def throttle_time_of(key: int, version: int, frame: bytes) -> int:
    return int(response_decoder(key, version)(memoryview(body_of(key, version, frame)), 0).throttle_time_ms)


def has_field(key: int, version: int) -> bool:
    """Whether a throttle time survives being encoded in this version, as the codec has it."""
    response = APIS[key].response()
    if not hasattr(response, "throttle_time_ms"):
        return False
    response.throttle_time_ms = 1
    encoded = b"".join(response_encoder(key, version)(response))
    return bool(response_decoder(key, version)(memoryview(encoded), 0).throttle_time_ms)


@pytest.mark.parametrize(("key", "version"), SERVED)
def test_a_response_carries_the_throttle_time_of_its_session(dispatch: Any, key: int, version: int) -> None:
    unthrottled, throttled = dispatch(key, version, 0), dispatch(key, version, THROTTLE_MS)
    if has_field(key, version):
        assert THROTTLE_MS - 5_000 < throttle_time_of(key, version, throttled) <= THROTTLE_MS
    else:
        assert throttled == unthrottled


@pytest.mark.parametrize(("key", "version"), [each for each in SERVED if each.id.split("-")[0] in ENCODED])
def test_a_response_that_was_encoded_before_carries_it_too(dispatch: Any, key: int, version: int) -> None:
    unthrottled = dispatch(key, version, 0, is_encoded=True)
    throttled = dispatch(key, version, THROTTLE_MS, is_encoded=True)
    assert len(throttled) == len(unthrottled)
    if has_field(key, version):
        assert THROTTLE_MS - 5_000 < throttle_time_of(key, version, throttled) <= THROTTLE_MS
        assert body_of(key, version, throttled)[4:] == body_of(key, version, unthrottled)[4:]
    else:
        assert throttled == unthrottled


def test_an_encoded_response_with_the_field_at_its_end_stays_as_it_is(dispatch: Any) -> None:
    for version in range(1, 4):
        unthrottled = dispatch(41, version, 0, is_encoded=True)
        assert dispatch(41, version, THROTTLE_MS, is_encoded=True) == unthrottled


def test_a_response_that_is_kept_for_others_is_not_changed() -> None:
    kept = EncodedResponse([b"\0\0\0\0rest"], Counter())
    throttled = with_throttle_time(kept, "Metadata", 12, 5)
    assert (b"".join(throttled.chunks), kept.chunks) == (b"\0\0\0\5rest", [b"\0\0\0\0rest"])


def test_the_response_to_a_large_request_carries_it(app: RunningApp, answering: Answering) -> None:
    answering.throttle_ms, answering.is_empty = MUTE_MS, False
    partitions = [ListOffsetsRequestPartition(partition_index=index, timestamp=-1) for index in range(4_000)]
    topics = [ListOffsetsRequestTopic(name="unknown", partitions=partitions)]
    with app.client() as client:
        answer = client.ask(5, ListOffsetsRequest(replica_id=-1, topics=topics))
    assert len(answer.topics[0].partitions) == len(partitions)
    assert 0 < answer.throttle_time_ms <= MUTE_MS


def test_a_throttled_client_is_answered_at_once_and_its_next_request_waits_for_the_throttle_time(
    app: RunningApp, answering: Answering
) -> None:
    answering.throttle_ms, answering.is_empty = MUTE_MS, False
    with app.client() as client, app.client() as other:
        started = time.monotonic()
        assert 0 < client.ask(12, MetadataRequest(topics=[])).throttle_time_ms <= MUTE_MS
        answering.throttle_ms = 0
        assert other.ask(12, MetadataRequest(topics=[])).throttle_time_ms == 0
        # The loop's timers may fire within the last millisecond, of which the response still tells.
        assert client.ask(12, MetadataRequest(topics=[])).throttle_time_ms <= 1
        assert time.monotonic() - started >= MUTE_MS / 1000
