"""What a connection's session knows of its client, and how it is muted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flowstone.broker.requests.session import ANONYMOUS, ClientSession
from flowstone.wire.messages import ApiVersionsRequest, MetadataRequest
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
