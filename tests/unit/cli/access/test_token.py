"""`flowstone token` against a broker with logins."""

from __future__ import annotations

import json
import stat

import pytest

from tests.support.security.tokens import app_with_tokens

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with app_with_tokens(tmp_path_factory.mktemp("broker")) as app:
        yield app


@pytest.fixture
def config(broker, tmp_path):
    """The properties file of a user."""
    host, port = broker.app.addresses["SASL_PLAINTEXT"]

    def write(user):
        path = tmp_path / f"{user}.properties"
        path.write_text(
            f"bootstrap.servers={host}:{port}\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            f'sasl.jaas.config={MODULE} required username="{user}" password="{user}";\n'
        )
        return path

    return write


def test_a_token_is_created_used_renewed_and_expired(run, config, tmp_path):
    alice, bob, carol = (("--config", config(name)) for name in ("alice", "bob", "carol"))
    file = tmp_path / "token.properties"
    created = run("token", "create", "--renewer", "bob", "--hours", "2", "--properties", file, *alice, "--json")
    token = json.loads(created.stdout)
    assert (token["owner"], token["not_after_ms"]) == ("User:alice", token["expires_ms"])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert 'tokenauth=\\"true\\"' in file.read_text() or 'tokenauth="true"' in file.read_text()
    assert "password" not in token
    (listed,) = json.loads(run("token", "list", "--json", *bob).stdout)["tokens"]
    assert (listed["token"], listed["renewers"]) == (token["token"], ["User:bob"])
    assert token["token"] in run("token", "list", "--owner", "alice", *alice).stdout
    assert "no tokens that you may see" in run("token", "list", "--owner", "carol", *carol).stdout
    # The file logs in, and the token gives no other ones.
    assert "not one with a token" in run("token", "list", "--config", file).stderr
    assert f"token {token['token']} expires" in run("token", "renew", token["token"], "--hours", "1", *bob).stdout
    assert "there is no token none" in run("token", "renew", "none", *alice).stderr
    assert "use --yes to confirm" in run("token", "expire", token["token"], *alice).stderr
    assert run("token", "expire", token["token"], "--yes", *alice).returncode == 0
    assert "no tokens that you may see" in run("token", "list", *alice).stdout


def test_no_token_is_created_whose_file_cannot_be_written(run, config, tmp_path):
    carol = ("--config", config("carol"))
    file = tmp_path / "token.properties"
    file.write_text("mine")
    refused = run("token", "create", "--properties", file, *carol)
    assert refused.returncode == 1
    assert "exists already" in refused.stderr
    assert "no tokens that you may see" in run("token", "list", *carol).stdout
    assert file.read_text() == "mine"


def test_the_password_is_printed_once_and_never_listed(run, config):
    alice = ("--config", config("alice"))
    created = json.loads(run("token", "create", "--json", *alice).stdout)
    assert len(created["password"]) == 88
    for told in (run("token", "list", *alice), run("token", "list", "--json", *alice)):
        assert created["token"] in told.stdout
        assert created["password"] not in told.stdout
    assert "--hours 0" in run("token", "create", "--hours", "0", *alice).stderr
