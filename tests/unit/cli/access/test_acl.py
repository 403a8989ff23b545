"""`flowstone acl` against a broker with access rules, whose anonymous clients may administrate it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.support.acl_clients import STANDARD
from tests.support.running_app import RunningApp

Run = Callable[..., subprocess.CompletedProcess[str]]
Acl = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    data = str(tmp_path_factory.mktemp("data"))
    with RunningApp(data, authorizer_class_name=STANDARD, super_users="User:ANONYMOUS") as app:
        yield app


@pytest.fixture
def acl(run: Run, app: RunningApp) -> Iterator[Acl]:
    host, port = app.app.addresses["PLAINTEXT"]

    def acl(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run("acl", *arguments, "--bootstrap", f"{host}:{port}")

    yield acl
    for user in ("bob", "eve", "*"):
        acl("remove", "--user", user, "--yes", "--json")


def documents(result: subprocess.CompletedProcess[str]) -> list[dict[str, str]]:
    assert (result.returncode, result.stderr) == (0, "")
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_rules_are_added_listed_and_removed(acl: Acl) -> None:
    added = acl("add", "--user", "bob", "--topic", "t", "--operation", "write")
    assert (added.returncode, added.stderr) == (0, "")
    assert added.stdout.splitlines()[1].split() == ["User:bob", "allow", "write", "topic", "t", "literal", "*"]
    assert acl("list").stdout == added.stdout
    removed = acl("remove", "--user", "bob", "--yes")
    assert removed.stdout.splitlines()[-1] == "removed 1 rule"
    assert acl("list").stdout == ""


def test_one_command_adds_the_rules_of_a_consumer(acl: Acl) -> None:
    rules = documents(acl("add", "--user", "bob", "--topic", "t", "--group", "g", "--operation", "read", "--json"))
    assert [(each["resource"], each["name"]) for each in rules] == [("topic", "t"), ("group", "g")]


def test_denials_prefixes_hosts_and_the_cluster(acl: Acl) -> None:
    documents(
        acl(
            *("add", "--user", "eve", "--topic", "pay", "--prefixed", "--deny", "--host", "10.0.0.7"),
            *("--operation", "all", "--operation", "describe-configs", "--json"),
        )
    )
    documents(acl("add", "--user", "*", "--cluster", "--operation", "clusteraction", "--json"))
    listed = documents(acl("list", "--json"))
    assert [tuple(each.values()) for each in listed] == [
        ("User:*", "allow", "cluster-action", "cluster", "kafka-cluster", "literal", "*"),
        ("User:eve", "deny", "all", "topic", "pay", "prefixed", "10.0.0.7"),
        ("User:eve", "deny", "describe-configs", "topic", "pay", "prefixed", "10.0.0.7"),
    ]
    assert len(documents(acl("list", "--topic", "payments", "--json"))) == 2
    assert documents(acl("list", "--topic", "other", "--json")) == []
    assert len(documents(acl("remove", "--topic", "pay", "--prefixed", "--operation", "all", "--yes", "--json"))) == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["add", "--topic", "t", "--operation", "read"], "whom is the rule for?"),
        (["add", "--user", "b", "--operation", "read"], "what is the rule for?"),
        (["add", "--user", "b", "--topic", "t"], "which operation is the rule for?"),
        (
            ["add", "--user", "b", "--topic", "t", "--operation", "eat"],
            "'eat' is not an operation of a topic: use all, read",
        ),
        (["add", "--user", "b", "--group", "g", "--operation", "write"], "'write' is not an operation of a group"),
        (["add", "--user", "b", "--principal", "User:b", "--topic", "t", "--operation", "read"], "give one of them"),
        (["add", "--principal", "b", "--topic", "t", "--operation", "read"], "must be TYPE:NAME"),
        (["remove", "--operation", "read", "--yes"], "which rules?"),
        (["remove", "--user", "nobody", "--yes"], "no rule matches"),
        (["remove", "--user", "bob"], "use --yes to confirm"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(acl: Acl, arguments: list[str], reason: str) -> None:
    result = acl(*arguments)
    assert result.returncode == 1
    assert result.stderr.startswith("flowstone: ")
    assert result.stderr.count("\n") == 1
    assert reason in result.stderr


def test_a_broker_without_authorizer_has_no_rules(run: Run, tmp_path_factory: pytest.TempPathFactory) -> None:
    with RunningApp(str(tmp_path_factory.mktemp("data"))) as app:
        host, port = app.app.addresses["PLAINTEXT"]
        result = run("acl", "list", "--bootstrap", f"{host}:{port}")
    assert result.returncode == 1
    assert "start it with authorizer.class.name=StandardAuthorizer" in result.stderr


def test_the_owners_of_tokens_are_users(acl: Acl) -> None:
    rule = ("--user", "bob", "--token-owner", "alice")
    (added,) = documents(acl("add", *rule, "--operation", "create-tokens", "--json"))
    assert (added["resource"], added["name"], added["operation"]) == ("user", "User:alice", "create-tokens")
    assert documents(acl("list", "--token-owner", "alice", "--json")) == [added]
    assert "use all, create-tokens, describe-tokens" in acl("add", *rule, "--operation", "read").stderr
    assert documents(acl("remove", "--token-owner", "alice", "--yes", "--json")) == [added]
