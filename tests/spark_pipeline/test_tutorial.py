"""The commands of docs/pipelines.md, run as it says, and its declarations in both forms.

`make test` leaves out what it runs elsewhere without a session of Spark for each command; `make spark` runs all.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flowstone import Broker
from flowstone.pipeline.authoring.loading import load
from flowstone.pipeline.operations.example import write_example
from tests.support.pages import DOCS, Block, assert_prints, blocks, is_same

PAGE = DOCS / "pipelines.md"
DOCUMENTED_ADDRESS = "127.0.0.1:9092"
TIMEOUT_S = 240
IS_LONG = os.environ.get("FLOWSTONE_SPARK_LONG") == "1"
RUN_ELSEWHERE = () if IS_LONG else ("flowstone pipeline check",)


@pytest.fixture
def environment(broker: Broker, tmp_path: Path) -> dict[str, str]:
    """The environment of a shell in which `flowstone` is this one, and its broker the test's."""
    command = tmp_path / "bin" / "flowstone"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m flowstone.cli "$@"\n')
    command.chmod(0o755)
    return {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}", "FLOWSTONE_BOOTSTRAP": broker.bootstrap}


def shell(text: str, directory: Path, environment: dict[str, str]) -> str:
    command = ["bash", "-ec", text]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=directory, env=environment, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{text}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.timeout(4 * TIMEOUT_S)
def test_the_commands_of_the_tutorial_do_what_it_says(tmp_path: Path, environment: dict[str, str]) -> None:
    on_page = [each for each in blocks(PAGE) if each.language in ("sh", "text")]
    for block, following in zip(on_page, [*on_page[1:], Block("", "")], strict=True):
        if block.language == "sh" and not block.text.startswith(("flowstone up", *RUN_ELSEWHERE)):
            printed = shell(block.text, tmp_path, environment)
            if following.language == "text":
                assert_prints(following.text, printed, is_same)


def test_the_declarations_of_the_tutorial_are_those_of_the_example(tmp_path: Path) -> None:
    """The page shows the example without its test."""
    for form, is_yaml in (("py", False), ("yaml", True)):
        directory = tmp_path / form / "shop"
        write_example(directory, is_yaml=is_yaml)
        example = load(directory)
        shown = next(each.text for each in blocks(PAGE) if each.language == form)
        (directory / f"pipeline.{form}").write_text(shown)
        on_page = load(directory)
        assert (on_page.sources, on_page.sinks) == (example.sources, example.sinks)
        assert [(each.name, each.inputs, each.expectations) for each in on_page.steps] == [
            (each.name, each.inputs, each.expectations) for each in example.steps
        ]


@pytest.mark.skipif(not IS_LONG, reason="test_fixture.py runs the same in make test")
def test_the_tests_of_the_tutorial_pass(flowstone_pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_example(tmp_path / "shop", is_yaml=False)
    monkeypatch.chdir(tmp_path)
    (source,) = (each.text for each in blocks(PAGE) if "def test_orders_arrive_once" in each.text)
    names: dict[str, object] = {}
    exec(source, names)
    names["test_orders_arrive_once"](flowstone_pipeline)  # type: ignore[operator]
