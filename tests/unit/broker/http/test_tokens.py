from __future__ import annotations

import http.client
import json
import select
import socket
import time

import pytest

from flowstone.broker.http import routes
from flowstone.broker.http.tokens import HttpTokens, read_tokens
from flowstone.client.security import ClientSecurity
from flowstone.errors import ConfigError, StartupError
from flowstone.ports.pem_source import PemSource
from flowstone.ports.secret_files import write_secret
from tests.support.running_app import RunningApp
from tests.support.security.secured import write_files

TOKEN = "correct-horse-battery"


def ask(broker: RunningApp, directory, path: str, token: str = "", method: str = "GET") -> tuple[int, object]:
    host, _, port = (broker.app.http_address or "").rpartition(":")
    pem = PemSource(truststore_location=str(directory / "ca.pem"))
    context = ClientSecurity("SSL", pem=pem).tls_context()
    connection = http.client.HTTPSConnection(host, int(port), timeout=10, context=context)
    try:
        connection.request(method, path, headers={"Authorization": f"Bearer {token}"} if token else {})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("broker")


@pytest.fixture(scope="module")
def broker(directory):
    write_secret(str(directory / "tokens"), f"admin={TOKEN}\nbob={TOKEN}-of-bob\n")
    settings = {
        **write_files(directory),
        "http.listener": "127.0.0.1:0",
        "http.ssl.enable": "true",
        "http.tokens.file": str(directory / "tokens"),
        "authorizer.class.name": "StandardAuthorizer",
        "super.users": "User:admin",
    }
    with RunningApp(str(directory / "data"), **settings) as running:
        yield running


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_probes_need_no_token(broker, directory, path):
    assert ask(broker, directory, path)[0] == 200


@pytest.mark.parametrize("token", ["", "guess", TOKEN[:-1], TOKEN + "x"])
@pytest.mark.parametrize("path", ["/groups", "/disks", "/nowhere", "/health/.."])
def test_other_pages_need_one(broker, directory, path, token):
    status, answer = ask(broker, directory, path, token)
    assert status == 401
    assert "http.tokens.file" in str(answer)
    assert token == "" or token not in str(answer)


def test_a_request_without_a_valid_token_is_audited_without_what_it_sent(tmp_path):
    write_secret(str(tmp_path / "tokens"), f"admin={TOKEN}\n")
    files = {**write_files(tmp_path), "http.ssl.enable": "true", "http.tokens.file": str(tmp_path / "tokens")}
    with RunningApp(str(tmp_path / "data"), **{"http.listener": "127.0.0.1:0"}, **files) as broker:
        assert [ask(broker, tmp_path, "/disks", token)[0] for token in ("canary-of-a-token", "", TOKEN)] == [
            401,
            401,
            200,
        ]
        assert ask(broker, tmp_path, "/health")[0] == 200
    text = (tmp_path / "data" / "audit" / "audit.jsonl").read_text()
    assert "canary" not in text
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["event"], line["host"], line["listener"], line["mechanism"], line["page"]) for line in lines] == [
        ("login.failed", "127.0.0.1", "HTTP", "token", "/disks")
    ] * 2
    assert [line["reason"] for line in lines] == ["the token is wrong", "there is no token"]


def test_a_token_has_the_permissions_of_its_user(broker, directory):
    assert ask(broker, directory, "/disks", TOKEN)[0] == 200
    assert ask(broker, directory, "/disks", f"{TOKEN}-of-bob")[0] == 403


def test_handshakes_that_do_not_end_are_limited_and_health_is_answered(broker, directory, monkeypatch):
    monkeypatch.setattr(routes, "HANDSHAKES_MAX", 20)
    host, _, port = (broker.app.http_address or "").rpartition(":")
    silent = [socket.create_connection((host, int(port)), 10) for _ in range(60)]
    try:
        assert ask(broker, directory, "/health")[0] == 200
        ends = time.monotonic() + 3  # sooner than the time limit of a handshake
        while (closed := sum(bool(select.select([each], [], [], 0)[0]) for each in silent)) < 40:
            assert time.monotonic() < ends, f"{closed} of 60 are closed"
            time.sleep(0.01)
        assert len(broker.app._http._server._opening) <= 20
    finally:
        for each in silent:
            each.close()


def test_the_port_speaks_only_tls(broker):
    connection = http.client.HTTPConnection(broker.app.http_address, timeout=10)
    connection.request("GET", "/health")
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        connection.getresponse()
    connection.close()


def test_a_token_is_found_in_any_spelling_of_the_header():
    tokens = HttpTokens({"bob": TOKEN})
    assert str(tokens.principal([(b"authorization", f"bearer  {TOKEN} ".encode())])) == "User:bob"
    assert tokens.principal([(b"authorization", f"Basic {TOKEN}".encode())]) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [("bob=short-canary", "at least 16 characters"), ("", "needs tokens"), ("=canary-canary-canary", "not user=token")],
)
def test_unusable_files_are_refused_without_repeating_them(tmp_path, text, message):
    path = tmp_path / "tokens"
    write_secret(str(path), text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_tokens(str(path))
    assert "canary" not in str(caught.value)
    path.chmod(0o644)
    with pytest.raises(StartupError, match="chmod 600"):
        read_tokens(str(path))
