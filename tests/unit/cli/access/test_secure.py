"""`flowstone secure init`, and `user`, `profile` and --config against the broker that it sets up."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from flowstone.cli.common.connection_options import profile_directory

CANARY_FILES = (
    "admin.password",
    "http.tokens",
    "ca.key",
    "server.pem",
    "users.scram",
    "client.properties",
    "server.properties",
)


@pytest.fixture
def secured(tmp_path, run, up, monkeypatch):
    """A broker that `secure init` has set up; its client's properties, and the broker."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert run("secure", "init", tmp_path / "secured", "--user", "admin").returncode == 0
    config = ("--config", "secured/server.properties", "--data", "data", "--listen", "127.0.0.1:0")
    broker = up(*config, http="127.0.0.1:0")
    monkeypatch.setenv("FLOWSTONE_BOOTSTRAP", broker.address)
    return tmp_path / "secured" / "client.properties", broker


def secrets_in(directory: Path) -> list[str]:
    password = (directory / "admin.password").read_text().strip()
    own = (directory / "server.properties").read_text().partition('password=\\"')[2].partition("\\")[0]
    keys = [line for line in (directory / "ca.key").read_text().splitlines() if "--" not in line]
    token = (directory / "http.tokens").read_text().strip().partition("=")[2]
    return [password, token, *keys, *([own] if own else [])]


def test_a_broker_is_secured_in_one_step(secured, run, tmp_path):
    client, broker = secured
    assert run("topic", "create", "t", "--config", client, "--config", "retention.ms=5000").returncode == 0
    assert "retention.ms" in run("topic", "describe", "t", "--config", client).stdout
    two = run("topic", "create", "u", "--config", client, "--config", "retention.ms")
    assert "only one can be a properties file" in two.stderr
    assert run("topic", "create", "u", "--command-config", client).returncode == 0
    assert run("produce", "t", "--config", client, input="hello\n").stdout == "stored 1 record\n"
    consumed = run("consume", "t", "--config", client)
    assert "hello" in consumed.stdout
    added = run("user", "add", "bob", "--password", "-", "--config", client, input="builder\n")
    assert (added.stdout, added.stderr) == ("bob can log in with SCRAM-SHA-512\n", "")
    told = json.loads(run("user", "list", "--json", "--config", client).stdout)
    assert [each["user"] for each in told["users"]] == ["admin", "bob", "flowstone-broker"]
    bob = tmp_path / "bob.properties"
    lines = [line for line in client.read_text().splitlines() if not line.startswith("sasl.jaas")]
    bob.write_text("\n".join([*lines, "sasl.username=bob", "sasl.password=builder"]))
    assert "there is no topic t" in run("produce", "t", "--config", bob, input="x\n").stderr
    assert (
        run("acl", "add", "--user", "bob", "--topic", "t", "--operation", "write", "--config", client).returncode == 0
    )
    assert run("produce", "t", "--config", bob, input="x\n").stdout == "stored 1 record\n"
    denied = run("consume", "t", "--config", bob)
    assert "lacks a permission" in denied.stderr
    assert "flowstone acl add" in denied.stderr
    allowed = run("acl", "add", "--user", "bob", "--topic", "t", "--operation", "read", "--config", client)
    assert allowed.returncode == 0
    consumed = run("consume", "t", "--config", bob)  # needs no permission for a group, since it uses none
    assert (consumed.stdout, consumed.stderr) == ("hello\nx\n", "")
    described = run("topic", "describe", "t", "--config", client)  # asks pages, with TLS and a token
    assert (described.returncode, described.stderr) == (0, "")
    assert "/disks cannot be read" not in described.stdout
    assert run("user", "remove", "bob", "--yes", "--config", client).stdout == "bob is removed\n"
    assert "there is no user bob" in run("user", "remove", "bob", "--yes", "--config", client).stderr
    status, log = broker.end(signal.SIGTERM)
    assert status == 0
    logged = log + "\n".join(broker.lines)
    assert [secret for secret in secrets_in(tmp_path / "secured") if secret in logged] == []


def test_only_the_owner_may_read_what_is_secret(secured, tmp_path):
    directory = tmp_path / "secured"
    assert directory.stat().st_mode & 0o777 == 0o700
    for name in CANARY_FILES:
        assert (directory / name).stat().st_mode & 0o777 == 0o600, name


def test_a_profile_replaces_the_file(secured, run, monkeypatch):
    client, broker = secured
    monkeypatch.delenv("FLOWSTONE_BOOTSTRAP")
    added = run("profile", "add", "prod", "--config", client, "--servers", broker.address)
    assert added.stdout == f"profile prod connects to {broker.address}; use it with --profile prod\n"
    assert (profile_directory() / "prod.properties").stat().st_mode & 0o777 == 0o600
    assert run("topic", "list", "--profile", "prod").returncode == 0
    monkeypatch.setenv("FLOWSTONE_PROFILE", "prod")
    assert json.loads(run("user", "list", "--json").stdout)["users"]
    assert json.loads(run("profile", "list", "--json").stdout) == {"profiles": ["prod"]}
    assert "there is a profile prod" in run("profile", "add", "prod", "--config", client).stderr
    assert run("profile", "add", "prod", "--config", client, "--replace").returncode == 0
    assert run("profile", "remove", "prod").stdout == "profile prod is removed\n"
    assert "there is no profile prod" in run("topic", "list").stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--config", "missing.properties"), "cannot read the properties file missing.properties: No such file"),
        (("--profile", "../x"), "is not a profile name"),
        (("--profile", "none"), "there is no profile none"),
        (("--profile", "a", "--config", "b"), "name one of them, not both"),
    ],
)
def test_what_cannot_be_used_is_said(run, tmp_path, monkeypatch, arguments, reason):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert reason in run("topic", "list", *arguments).stderr


def test_a_wrong_password_is_told_and_not_shown(secured, run, tmp_path):
    client, _ = secured
    wrong = tmp_path / "wrong.properties"
    lines = [line for line in client.read_text().splitlines() if not line.startswith("sasl.jaas")]
    wrong.write_text("\n".join([*lines, "sasl.username=admin", "sasl.password=canary"]))
    told = run("user", "list", "--config", wrong)
    assert "refused the login of 'admin'" in told.stderr
    assert "canary" not in told.stdout + told.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--user", "a,b"), "--user 'a,b': use letters"),
        (("--host", ""), "is not a host name"),
        (("--listen", "nowhere"), "expected HOST:PORT"),
        (("--listen", ""), "expected HOST:PORT"),
    ],
)
def test_bad_names_are_refused(run, tmp_path, arguments, reason):
    assert reason in run("secure", "init", tmp_path / "new", *arguments).stderr
    assert not (tmp_path / "new").exists()


def test_a_directory_with_files_is_left_alone(run, tmp_path):
    (tmp_path / "file").write_text("kept")
    assert "is not empty" in run("secure", "init", tmp_path).stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("listen", [(), ("--listen", "0.0.0.0:9092")])
def test_an_address_of_every_interface_is_advertised_by_the_first_host(run, tmp_path, listen):
    told = run("secure", "init", tmp_path / "new", *listen, "--host", "b.example.org", "--json")
    assert json.loads(told.stdout)["user"] == "admin"
    text = (tmp_path / "new" / "server.properties").read_text()
    assert "listeners=SASL_SSL://0.0.0.0:9092\nadvertised.listeners=SASL_SSL://b.example.org:9092\n" in text
    assert "bootstrap.servers=b.example.org:9092" in (tmp_path / "new" / "client.properties").read_text()
