"""What a request is answered before its page's handler is called, and when the handler fails."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from flowstone.broker.http.access import HttpAccess
from flowstone.broker.http.listener import HttpListener
from flowstone.broker.http.page import GET, POST, Answer, Integer, Page, PageRequest, Site
from flowstone.errors import ApiError, ConfigError, ErrorCode, FlowstoneError, StorageFault
from tests.support.running_app import TIMEOUT_S, LoopThread

ERRORS: list[tuple[FlowstoneError, int, str]] = [
    (ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is none"), 404, "UNKNOWN_TOPIC_OR_PARTITION"),
    (ConfigError("retention.ms: no"), 400, "INVALID_CONFIG"),
    (StorageFault("the disk is gone"), 503, "KAFKA_STORAGE_ERROR"),
]


async def show(_: None, request: PageRequest) -> Answer:
    return Answer(json.dumps(request.parameters).encode())


async def change(_: None, request: PageRequest) -> Answer:
    return Answer(request.body)


async def fail(_: None, request: PageRequest) -> Answer:
    which = request.integer("which")
    assert which is not None
    raise ERRORS[which][0]


PAGES = [
    Page(GET, "/item", "", (), handler=show, parameters=[Integer("number", 10)]),
    Page(POST, "/item", "", (), handler=change),
    Page(POST, "/only-posted", "", (), handler=change),
    Page(GET, "/failing", "", (), handler=fail, parameters=[Integer("which", 10)]),
]


@pytest.fixture
def connection() -> Iterator[http.client.HTTPConnection]:
    with LoopThread() as loop:
        listener = loop.call(lambda: HttpListener("127.0.0.1", 0, lambda: Site(PAGES, None), HttpAccess((), ())))
        loop.call(listener.start)
        client = http.client.HTTPConnection(listener.address, timeout=TIMEOUT_S)
        yield client
        client.close()
        loop.run(listener.stop())


def ask(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None
) -> tuple[http.client.HTTPResponse, Any]:
    connection.request(method, path, body, {"Content-Type": "application/json"} if body is not None else {})
    response = connection.getresponse()
    received = response.read()
    return response, json.loads(received) if received else None


def test_a_path_has_a_page_for_each_method(connection: http.client.HTTPConnection) -> None:
    assert ask(connection, "GET", "/item?number=7")[1] == {"number": 7}
    assert ask(connection, "POST", "/item", b"[1]")[1] == [1]


def test_a_path_without_a_page_is_answered_404_in_json(connection: http.client.HTTPConnection) -> None:
    response, document = ask(connection, "GET", "/nowhere")
    assert (response.status, document) == (404, {"status": "refused", "reason": "there is no page GET /nowhere"})


def test_a_method_without_a_page_is_answered_405_with_those_that_have_one(
    connection: http.client.HTTPConnection,
) -> None:
    response, document = ask(connection, "GET", "/only-posted")
    assert (response.status, document["reason"]) == (405, "there is no page GET /only-posted")
    assert response.headers["allow"] == "POST"


def test_a_parameter_out_of_bounds_is_answered_400(connection: http.client.HTTPConnection) -> None:
    response, document = ask(connection, "GET", "/item?number=11")
    expected = {"error": "INVALID_REQUEST", "message": "number must be at most 10, not 11"}
    assert (response.status, document) == (400, expected)


def test_head_is_answered_as_get_without_a_body(connection: http.client.HTTPConnection) -> None:
    response, document = ask(connection, "HEAD", "/item")
    assert (response.status, response.headers["content-length"], document) == (200, "2", None)


@pytest.mark.parametrize("which", range(len(ERRORS)))
def test_an_error_of_a_handler_is_answered_with_its_code(connection: http.client.HTTPConnection, which: int) -> None:
    error, status, code = ERRORS[which]
    response, document = ask(connection, "GET", f"/failing?which={which}")
    assert (response.status, document["error"]) == (status, code)
    assert document["message"] in str(error)
