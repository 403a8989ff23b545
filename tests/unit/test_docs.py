"""The pages for people say what is so: commands are run, tables and options compared.

A page's blocks are run from top to bottom in one directory: `sh` in a shell, `python` as a program, and a block of
`text` is what the one before it prints (… stands for anything, and nothing is said about the order of lines).
`flowstone up` runs in a terminal of its own; a page that does not start a broker finds one running. The addresses of
the pages may be taken on this machine, so free ones are put in their place.

The README's `bash` is a session: each line is a step, and after a kill the broker is started again. Programs under
`examples/`, and what the pages show of them, are the business of `tests/examples`.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from flowstone.cli.commands import build_app
from flowstone.cli.up import settings_table
from flowstone.cli.up.command import build_parser
from flowstone.embedded import Broker
from flowstone.pipeline.authoring import reference
from tests.support.pages import DOCS, ROOT, STOP, Block, assert_prints, blocks, is_same, is_same_word
from tests.support.ports import free_ports
from tests.unit.cli.command_server import commands_in

README = ROOT / "README.md"
DOCUMENTED_ADDRESS, DOCUMENTED_HTTP_ADDRESS = "127.0.0.1:9092", "127.0.0.1:9080"
BROKER = f"flowstone up --data my-data --listen {DOCUMENTED_ADDRESS}"
BROKERS_MAX = 3  # on a page; their ports count up
TIMEOUT_S = 240  # a page about Spark starts a session

RUN = ("sh", "python")
FILES = ("properties", "ini", "yaml")  # what they show is no command


# Run elsewhere: one of the first runs this.
ELSEWHERE = ("make ", "python -m examples.", "# examples/")


# Run on a session of Spark, where that is shared: tests/spark_pipeline/test_tutorial.py.
PAGES_ABOUT_PIPELINES = ("pipelines.md",)


def steps(page: str) -> list[Block]:
    return [block for block in blocks(DOCS / page) if not block.text.startswith(ELSEWHERE)]


PAGES_WITH_COMMANDS = sorted(
    path.name
    for path in DOCS.glob("*.md")
    if path.name not in PAGES_ABOUT_PIPELINES and any(block.language in RUN for block in steps(path.name))
)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with a `flowstone` command that starts in no time."""
    directory = tmp_path_factory.mktemp("bin")
    with commands_in(directory, {**_clean_environment(), "PYTHONPATH": str(ROOT / "src")}) as prefix:
        command = directory / "flowstone"
        # A broker is a process to be stopped by signals: it is not forked off another.
        command.write_text(
            f'#!/bin/sh\n[ "$1" = up ] && exec {sys.executable} -m flowstone.cli "$@"\nexec {shlex.join(prefix)} "$@"\n'
        )
        command.chmod(0o755)
        yield directory


def _clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("FLOWSTONE_")}


class Machine:
    """Where a page is run: a directory, a broker in a first terminal, and a second one for everything else."""

    def __init__(self, directory: Path, commands: Path) -> None:
        self.address = f"127.0.0.1:{free_ports(BROKERS_MAX)}"
        self._http_address = DOCUMENTED_HTTP_ADDRESS
        self._directory = directory
        self._environment = {
            **_clean_environment(),
            "PATH": f"{commands}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "FLOWSTONE_SET_HTTP_LISTENER": "127.0.0.1:0",
            "XDG_CONFIG_HOME": str(directory / "config"),
            "FLOWSTONE_SET_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",  # three seconds that teach nothing
        }
        self._broker: subprocess.Popen[str] | None = None

    def start(self, command: str) -> list[str]:
        """What it says until it is ready. Starting it again stops it first, as pages say, with Ctrl-C."""
        self.stop()
        self._environment["FLOWSTONE_BOOTSTRAP"] = self.address
        self._broker = subprocess.Popen(
            ["bash", "-c", f"exec {self._with_addresses(command)}"],
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
            if line.startswith("http "):
                self._http_address = line.split()[1]
            if line.startswith("ready "):
                break
        assert lines, command
        assert lines[-1].partition(",")[0] == f"ready {self.address}"  # a cluster's first broker
        return lines

    def stop(self) -> None:
        if self._broker is not None:
            self._broker.send_signal(signal.SIGINT)
            self._broker.communicate(timeout=TIMEOUT_S)
            assert self._broker.returncode == 0
            self._broker = None

    def kill(self) -> None:
        assert self._broker is not None
        self._broker.kill()
        self._broker.communicate(timeout=TIMEOUT_S)
        self._broker = None

    def run(self, block: Block) -> str:
        """Standard output of a block that must end well."""
        text = self._with_addresses(block.text)
        command = ["bash", "-ec", text] if block.language == "sh" else [sys.executable, "-c", text]
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=self._directory,
            env=self._environment,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert result.returncode == 0, f"{block.text}: {result.stdout}{result.stderr}"
        if block.language == "sh":  # a client library in a program may have a word to say when its broker goes
            assert result.stderr == "", block.text
        return result.stdout

    def _with_addresses(self, text: str) -> str:
        return text.replace(DOCUMENTED_ADDRESS, self.address).replace(DOCUMENTED_HTTP_ADDRESS, self._http_address)


@pytest.fixture
def machine(tmp_path: Path, commands: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path, commands)
    yield machine
    machine.stop()


@pytest.mark.timeout(2 * TIMEOUT_S)
@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS)
def test_every_command_of_a_page_does_what_the_page_says(page: str, machine: Machine) -> None:
    to_run = [block for block in steps(page) if block.language in (*RUN, "text", STOP)]
    if not any(block.text.startswith("flowstone up") for block in to_run):
        machine.start(BROKER)
    for block, following in zip(to_run, [*to_run[1:], Block("", "")], strict=True):
        expected = following.text if following.language == "text" else None
        if block.language == STOP:
            machine.stop()
        elif block.text.startswith("flowstone up"):
            lines = machine.start(block.text.strip())
            if expected is not None:
                assert_prints(expected, "\n".join(lines), is_same_word)
        elif block.language in RUN:
            printed = machine.run(block)
            if expected is not None:
                assert_prints(expected, printed, is_same)


def test_the_commands_of_the_readme_do_what_it_says(machine: Machine) -> None:
    (session,) = (block.text for block in blocks(README) if block.language == "bash")
    broker, printed = "", {}
    for line in session.splitlines():
        command = line.partition("  #")[0]
        if command.startswith("flowstone up"):
            broker = command
            machine.start(broker)
        elif command.startswith("pkill"):  # not as it stands: other brokers on this machine may be called the same
            assert broker.startswith(shlex.split(command)[-1])
            machine.kill()
            machine.start(broker)
            for consume in (each for each in printed if each.startswith("flowstone consume")):
                assert machine.run(Block("sh", consume)) == printed[consume] != ""
        elif not command.startswith(ELSEWHERE):
            printed[command] = machine.run(Block("sh", command))
    assert "curl" in command
    assert "flowstone_" in printed[command]


def test_the_test_of_the_readme_passes(tmp_path: Path) -> None:
    (source,) = (block.text for block in blocks(README) if block.language == "python")
    (tmp_path / "test_orders.py").write_text(source)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "flowstone.pytest_plugin", "test_orders.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        # Named above, whether or not the package is installed here: it must not be loaded twice.
        env={**_clean_environment(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT / "src")},
        timeout=TIMEOUT_S,
        check=False,
    )
    assert "1 passed" in result.stdout, result.stdout + result.stderr


def test_the_transaction_of_the_readme_is_committed(tmp_path: Path) -> None:
    (source,) = (block.text for block in blocks(README) if "begin_transaction()" in block.text)
    with Broker() as broker:
        assert source.count(DOCUMENTED_ADDRESS) == 1
        program = source.replace(DOCUMENTED_ADDRESS, broker.bootstrap)
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, timeout=TIMEOUT_S, check=True)
        (order,) = broker.wait_for("orders", 1, read_committed=True)
        (invoice,) = broker.wait_for("invoices", 1, read_committed=True)
    assert (order.key, order.value, invoice.value) == (b"bob", b'{"total": 7}', b"7")


def test_every_command_is_in_a_block_that_is_run() -> None:
    for path in DOCS.glob("*.md"):
        for block in steps(path.name) if path.name not in PAGES_ABOUT_PIPELINES else ():
            assert block.language in (*RUN, *FILES, "text", STOP), f"{path.name}: {block}"


def test_the_settings_table_is_up_to_date() -> None:
    assert settings_table.main([str(DOCS / "configuration.md"), "--check"]) == 0, (
        "run: python -m flowstone.cli.up.settings_table docs/configuration.md"
    )


def test_the_reference_of_pipelines_is_up_to_date() -> None:
    assert reference.main([str(DOCS / "pipeline-reference.md"), "--check"]) == 0, (
        "run: python -m flowstone.pipeline.authoring.reference docs/pipeline-reference.md"
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


@pytest.mark.parametrize("page", [README, *sorted(DOCS.glob("*.md"))], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []
