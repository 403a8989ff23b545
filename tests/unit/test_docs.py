"""The pages for people say what is so: commands are run, tables and options compared."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import typer

from flowstone.cli import settings_table
from flowstone.cli.commands import build_app
from flowstone.cli.up import build_parser

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DOCUMENTED_ADDRESS = "127.0.0.1:9092"
TIMEOUT_S = 30


class Block(NamedTuple):
    language: str
    text: str


def blocks(page: str) -> list[Block]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return [Block(*found) for found in re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)]


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who has the `flowstone` command."""
    command = tmp_path / "bin" / "flowstone"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m flowstone.cli "$@"\n')
    command.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLOWSTONE_")}
    return {**kept, "PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}


class FirstTerminal:
    """Where the broker runs; starting it again stops it first, as the page says, with Ctrl-C."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self._directory, self._environment = directory, environment
        self._broker: subprocess.Popen[str] | None = None

    def start(self, command: str) -> list[str]:
        self.stop()
        self._broker = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=self._directory,
            env=self._environment,
        )
        assert self._broker.stdout is not None
        lines = []
        for line in self._broker.stdout:
            lines.append(line.rstrip())
            if line.startswith("ready "):
                break
        return lines

    def stop(self) -> None:
        if self._broker is not None:
            self._broker.send_signal(signal.SIGINT)
            self._broker.communicate(timeout=TIMEOUT_S)
            assert self._broker.returncode == 0
            self._broker = None


def test_every_command_of_the_first_steps_does_what_the_page_says(tmp_path: Path, shell: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    shell["FLOWSTONE_BOOTSTRAP"] = address  # the page's own addresses may be taken on this machine
    shell["FLOWSTONE_SET_HTTP_LISTENER"] = "127.0.0.1:0"
    terminal = FirstTerminal(tmp_path, shell)
    found = blocks("first-steps.md")
    try:
        for block, following in zip(found, [*found[1:], Block("", "")], strict=True):
            expected = following.text if following.language == "text" else ""
            if block.language == "text":
                continue
            if block.text.startswith("flowstone up"):
                lines = terminal.start(block.text.strip().replace(DOCUMENTED_ADDRESS, address))
                assert lines[-1] == f"ready {address}"
                if expected:
                    assert [line.split()[0] for line in lines] == [line.split()[0] for line in expected.splitlines()]
                continue
            command = ["bash", "-ec", block.text] if block.language == "sh" else [sys.executable, "-c", block.text]
            result = subprocess.run(
                command, capture_output=True, text=True, cwd=tmp_path, env=shell, timeout=TIMEOUT_S, check=False
            )
            assert result.returncode == 0, result.stderr
            if block.language == "sh":  # a client library in a program may have a word to say when its broker goes
                assert result.stderr == "", block.text
            # Nothing is said about the order between partitions.
            assert sorted(result.stdout.split("\n")) == sorted(expected.split("\n")), block.text
    finally:
        terminal.stop()


def test_the_settings_table_is_up_to_date() -> None:
    assert settings_table.main([str(DOCS / "configuration.md"), "--check"]) == 0, (
        "run: python -m flowstone.cli.settings_table docs/configuration.md"
    )


def test_every_option_of_up_is_on_the_page_of_commands() -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    options = {option for action in build_parser()._actions for option in action.option_strings}
    assert {option for option in options if f"`{option}" not in page} <= {"-h", "--help"}


def test_every_other_command_and_option_is_on_the_page_of_commands() -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    groups = typer.main.get_command(build_app("")).commands
    commands = {name: group for name, group in groups.items() if not hasattr(group, "commands")}
    for name, group in groups.items():
        commands |= {f"{name} {each}": command for each, command in getattr(group, "commands", {}).items()}
    for name, command in commands.items():
        assert name.split()[-1] in page
        for parameter in command.params:
            for option in parameter.opts:
                assert not option.startswith("--") or option in page, f"{name} {option}"


@pytest.mark.parametrize("page", ["first-steps.md", "cli.md", "configuration.md", "monitoring.md"])
def test_links_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", (DOCS / page).read_text(encoding="utf-8"))
    assert [target for target in targets if not (DOCS / target).exists()] == []
