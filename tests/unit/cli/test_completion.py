from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import flowstone
from flowstone.cli.completion import candidates
from tests.unit.cli.conftest import command_environment

Run = Callable[..., subprocess.CompletedProcess[str]]
Call = Callable[..., str]
Prepare = Callable[..., None]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["t"], ["token", "topic", "txn"]),
        (["--v"], ["--version"]),
        (["topic", "de"], ["delete", "describe"]),
        (["topic", "alter", "t", "--p"], ["--partitions", "--profile"]),
        (["consume", "t", "--from"], ["--from-beginning"]),
        (["consume", "t", "--offset", ""], []),
        (["up", "--log-f"], ["--log-format"]),
        (["up", "--log-format", ""], ["json", "text"]),
        (["up", "--data", ""], []),
        (["completion", ""], ["bash", "fish", "zsh"]),
        (["nothing", ""], []),
    ],
)
def test_commands_and_options_are_completed(words: list[str], expected: list[str]) -> None:
    assert candidates(words) == expected


def test_topics_come_from_the_broker(prepare: Prepare, broker: flowstone.Broker) -> None:
    prepare("completed-1")
    prepare("completed-2")
    assert candidates(["consume", "--bootstrap", broker.bootstrap, "complet"]) == ["completed-1", "completed-2"]
    assert candidates(["consume", "--bootstrap", broker.bootstrap, "completed-1", "complet"]) == []


def test_groups_come_from_the_broker(prepare: Prepare, call: Call, broker: flowstone.Broker) -> None:
    prepare("grouped")
    for group in ("completed-a", "completed-b"):
        call("group", "reset", group, "--to-earliest", "--topic", "grouped", "--yes")
    assert candidates(["group", "describe", "--bootstrap", broker.bootstrap, "complet"]) == [
        "completed-a",
        "completed-b",
    ]
    assert candidates(["group", "describe", "--bootstrap", broker.bootstrap, "completed-a", "complet"]) == []


@pytest.mark.parametrize("words", [["consume"], ["group", "watch"]])
def test_without_a_broker_no_name_is_offered(words: list[str]) -> None:
    assert candidates([*words, "--bootstrap", "127.0.0.1:1", ""]) == []


def test_bash_takes_the_script(tmp_path: Path, run: Run) -> None:
    script = run("completion", "bash").stdout
    # Stands for the command, and shows what it is asked.
    program = script + '\nflowstone() { echo "$#:$*"; }\nCOMP_WORDS=(flowstone topic de)\nCOMP_CWORD=2\n_flowstone\n'
    result = subprocess.run(
        ["bash", "-c", program + 'echo "${COMPREPLY[@]}"'],
        capture_output=True,
        text=True,
        env=command_environment(),
        cwd=tmp_path,
        check=True,
    )
    assert result.stdout == "3:__complete topic de\n"


def test_an_unknown_shell_is_refused(run: Run) -> None:
    assert "choose one of bash, zsh, fish" in run("completion", "tcsh").stderr
