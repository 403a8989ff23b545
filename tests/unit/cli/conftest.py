"""The command line as a user meets it: a process, its two streams and its exit status, no terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src"
COMMAND_TIMEOUT_S = 30

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def command_environment() -> dict[str, str]:
    """Of a user's shell, without what the tests' own run has set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLOWSTONE_", "PYTEST"))}
    return {**kept, "PYTHONPATH": str(SOURCE), "COLUMNS": "100"}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a command to its end, in an empty directory."""

    def run(*arguments: object, input: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "flowstone.cli", *map(str, arguments)],
            input=input,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**command_environment(), **environment},
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )

    return run
