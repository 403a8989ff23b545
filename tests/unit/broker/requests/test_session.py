"""What a connection's session knows of its client, and how it is muted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flowstone.broker.requests.session import ANONYMOUS, ClientSession
from flowstone.wire.messages import (
    ApiVersionsRequest,
    MetadataRequest,
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
)
from flowstone.wire.record_batch import Record, build_batch
from tests.support.running_app import RunningApp
from tests.support.wire_client import CLIENT_ID, Client


@pytest.fixture
def app(tmp_path: Path) -> Iterator[RunningApp]:
    with RunningApp(str(tmp_path)) as running:
        yield running


def only_session(app: RunningApp) -> ClientSession:
    (connection,) = app.app._server._connections
    return connection.session


def test_a_session_names_its_listener_and_its_clients_address_and_is_anonymous(app: RunningApp) -> None:
    with app.client() as client:
        client.ask(1, MetadataRequest(topics=[]))
        session = only_session(app)
        host, port = client.socket.getsockname()
        assert (session.listener_name, session.peer) == ("PLAINTEXT", f"{host}:{port}")
        assert session.principal is ANONYMOUS
        assert str(session.principal) == "User:ANONYMOUS"


def test_a_session_has_the_client_id_of_the_newest_request(app: RunningApp) -> None:
    with app.client() as client:
        client.ask(1, MetadataRequest(topics=[]))
        assert only_session(app).client_id == CLIENT_ID
        client.send(bytes.fromhex("0000000e 0003 0001 00000007 ffff 00000000".replace(" ", "")))  # no client id
        client.receive()
        assert only_session(app).client_id is None


def asked_with(client: Client, version: int, name: str) -> None:
    client.ask(version, ApiVersionsRequest(client_software_name=name, client_software_version="1.2"))


def test_a_session_has_the_software_that_the_newest_api_versions_request_names(app: RunningApp) -> None:
    with app.client() as client:
        asked_with(client, 3, "first")
        asked_with(client, 4, "second")
        session = only_session(app)
        assert (session.software_name, session.software_version) == ("second", "1.2")


@pytest.mark.parametrize(("version", "name"), [(2, "ignored"), (3, "not a name")])
def test_a_session_keeps_its_software_where_a_request_names_none_properly(
    app: RunningApp, version: int, name: str
) -> None:
    with app.client() as client:
        asked_with(client, 3, "first")
        asked_with(client, version, name)
        assert only_session(app).software_name == "first"


def test_each_connection_has_a_session_of_its_own(app: RunningApp) -> None:
    with app.client() as one, app.client() as other:
        asked_with(one, 3, "one")
        asked_with(other, 3, "other")
        names = {connection.session.software_name for connection in app.app._server._connections}
        assert names == {"one", "other"}


def test_a_buffer_is_kept_once_and_only_by_who_needs_the_larger_part_of_its_request() -> None:
    session = ClientSession("PLAINTEXT", "127.0.0.1:1", lambda: None)
    assert not session.take_frame(100)  # the request is in the shared buffer
    session.own_frame_bytes = 100
    assert not session.take_frame(49)
    assert session.take_frame(50)
    assert not session.take_frame(100)


def test_a_large_request_of_which_a_small_part_is_appended_later_keeps_no_large_buffer(app: RunningApp) -> None:
    """The memory of what waits is limited by its own size."""
    frames: list[int] = []

    def give_back(buffer: memoryview, *, is_free: bool = True) -> None:
        frames.append(len(buffer) if is_free else -len(buffer))
        original(buffer, is_free=is_free)

    server = app.app._server
    original, server.buffers.give_back = server.buffers.give_back, give_back  # type: ignore[method-assign]
    with app.client() as client:
        assert client.create_topic("t", max_message_bytes=str(64 << 20)) == 0
        frames.clear()
        batches = [build_batch([Record(0, 1, None, bytes(size))]) for size in (20 << 20, 5 << 20)]
        for wanted in ([(7, batches[0]), (0, batches[1])], [(0, batches[1])]):
            data = [ProduceRequestPartition(index=index, records=batch) for index, batch in wanted]
            topics = [ProduceRequestTopic(name="t", partition_data=data)]
            answer = client.ask(9, ProduceRequest(acks=1, timeout_ms=10_000, topic_data=topics))
            assert answer.responses[0].partition_responses[-1].error_code == 0
        assert [each > 0 for each in frames] == [True, False]
