"""What is said when the system refuses: a full disk, a directory that is somebody else's."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.filesystems import tmpfs
from tests.unit.cli.conftest import COMMAND_TIMEOUT_S, Up, command_environment

Run = Callable[..., subprocess.CompletedProcess[str]]

DISK_BYTES = 512 << 10
ANYWHERE = ("--listen", "127.0.0.1:0")


@pytest.fixture
def run_unprivileged(tmp_path: Path) -> Run:
    """Runs a command to its end as somebody for whom permissions hold, which they do not for root."""
    prefix: list[str] = []
    if os.geteuid() == 0:
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            pytest.skip("as root it needs setpriv")
        prefix = [setpriv, "--bounding-set=-dac_override,-dac_read_search"]

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*prefix, sys.executable, "-m", "flowstone.cli", *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=command_environment(),
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )

    return run


@pytest.fixture
def forbidden(tmp_path: Path) -> Path:
    directory = tmp_path / "forbidden"
    directory.mkdir(mode=0o000)
    return directory


def test_a_full_disk_is_said_with_what_can_be_done(run_process: Run, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", DISK_BYTES):
        (tmp_path / "disk" / "filler").write_bytes(bytes(DISK_BYTES))
        result = run_process("up", "--data", "disk/data", *ANYWHERE)
    assert result.returncode == 1
    assert "No space left on device" in result.stderr
    assert result.stderr.endswith("; free disk space, or choose another directory with --data\n")


def test_records_that_find_no_space_are_not_counted(run_process: Run, up: Callable[..., Up], tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", DISK_BYTES):
        broker = up("--data", "disk/data", *ANYWHERE)
        run_process("topic", "create", "t", FLOWSTONE_BOOTSTRAP=broker.address)
        lines = ("x" * 1000 + "\n") * 1000
        result = run_process("produce", "t", "--timeout", "1", input=lines, FLOWSTONE_BOOTSTRAP=broker.address)
        stored = run_process("consume", "t", FLOWSTONE_BOOTSTRAP=broker.address).stdout.count("\n")
        broker.end(signal.SIGKILL)
    assert result.returncode == 1
    assert result.stderr.startswith(
        f"flowstone: stored only {stored} records; {broker.address} did not take the next ones"
    )
    assert "check its disk with `flowstone doctor" in result.stderr


def test_no_permission_for_the_data_directory_is_said(run_unprivileged: Run, forbidden: Path) -> None:
    result = run_unprivileged("up", "--data", forbidden / "data", *ANYWHERE)
    assert result.returncode == 1
    assert "Permission denied" in result.stderr
    assert f"the data directory {forbidden}/data cannot be used: Permission denied" in result.stderr
    assert "choose another directory with --data" in result.stderr
    assert "--listen" not in result.stderr
    assert result.stderr.count("\n") == 1


def test_no_permission_for_log_files_is_said(run_unprivileged: Run, forbidden: Path) -> None:
    result = run_unprivileged("log", "verify", forbidden)
    assert result.returncode == 1
    assert result.stderr == f"flowstone: cannot use {forbidden}: Permission denied: run as the broker's user\n"


def test_no_permission_is_what_the_doctor_finds(run_unprivileged: Run, forbidden: Path) -> None:
    result = run_unprivileged("doctor", "--data", forbidden)
    assert result.returncode == 1
    assert f"bad      data directory: {forbidden}: no permission for {forbidden}" in result.stdout
