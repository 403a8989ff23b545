"""`flowstone quota` against a broker."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.support.running_app import RunningApp

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    with RunningApp(str(tmp_path_factory.mktemp("data"))) as app:
        yield app


@pytest.fixture
def quota(run: Run, app: RunningApp) -> Run:
    host, port = app.app.addresses["PLAINTEXT"]
    return lambda *arguments: run("quota", *arguments, "--bootstrap", f"{host}:{port}")


def output(result: subprocess.CompletedProcess[str]) -> str:
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def test_quotas_are_set_listed_and_removed(quota: Run) -> None:
    output(quota("set", "--user", "bob", "--client-id", "app", "--produce", "1000000", "--request", "12.5"))
    output(quota("set", "--default-user", "--mutations", "0.5"))
    output(quota("set", "--ip", "10.0.0.7", "--connections", "10"))
    rows = [line.split() for line in output(quota("list")).splitlines()[1:]]
    assert rows == [
        ["client-id", "app,", "user", "bob", "1000000", "-", "12.5", "-", "-"],
        ["ip", "10.0.0.7", "-", "-", "-", "-", "10"],
        ["user", "default", "-", "-", "-", "0.5", "-"],
    ]
    documents = [json.loads(line) for line in output(quota("list", "--json")).splitlines()]
    assert documents[2] == {"entity": {"user": None}, "quotas": {"controller_mutation_rate": 0.5}}
    assert output(quota("remove", "--default-user", "--yes")) == "removed the quotas of user default\n"
    output(quota("remove", "--user", "bob", "--client-id", "app", "--yes"))
    output(quota("remove", "--ip", "10.0.0.7", "--yes"))
    assert output(quota("list")) == ""


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["set", "--produce", "1"], "whose quota?"),
        (["set", "--user", "bob"], "which quota?"),
        (["set", "--user", "bob", "--default-user", "--produce", "1"], "exclude each other"),
        (["set", "--user", "bob", "--produce", "1.5"], "must be a Long value"),
        (["set", "--user", "bob", "--produce", "0"], "must be greater than 0"),
        (["set", "--user", "bob", "--connections", "5"], "Invalid configuration key"),
        (["set", "--ip", "nowhere", "--connections", "5"], "nowhere is not a valid IP address"),
        (["set", "--ip", "10.0.0.1", "--user", "bob", "--connections", "5"], "should not be combined"),
        (["remove", "--user", "bob"], "use --yes to confirm"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(quota: Run, arguments: list[str], reason: str) -> None:
    result = quota(*arguments)
    assert result.returncode == 1
    assert result.stderr.startswith("flowstone: ")
    assert result.stderr.count("\n") == 1
    assert reason in result.stderr
