"""`flowstone doctor`: what it finds on a good machine, and on bad ones."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import flowstone
from flowstone import kernel
from flowstone.cli.doctor import disk_checks
from flowstone.cli.doctor.checks import Finding, Status, check_kernel, check_open_files
from flowstone.cli.doctor.command import check_broker
from flowstone.cli.doctor.disk_checks import check_disk

Run = Callable[..., subprocess.CompletedProcess[str]]

NAMES = [
    "python",
    "versions",
    "kernel",
    "compiler",
    "event loop",
    "open files",
    "clock",
    "data directory",
    "disk space",
    "file system",
    "flush",
    "broker",
    "transactions",
]


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def test_every_check_is_one_line_and_advice_another(run: Run, broker: flowstone.Broker, tmp_path: Path) -> None:
    result = run("doctor", "--data", tmp_path, "--bootstrap", broker.bootstrap)
    assert result.returncode == 0
    lines = [line for line in result.stdout.splitlines() if not line.startswith("  ")]
    assert [line.split(maxsplit=1)[1].partition(":")[0] for line in lines] == NAMES
    assert {line.split()[0] for line in lines} <= {"good", "warning"}


def test_the_same_for_programs(run: Run, broker: flowstone.Broker, tmp_path: Path) -> None:
    told = json.loads(run("doctor", "--data", tmp_path, "--bootstrap", broker.bootstrap, "--json").stdout)
    assert told["good"] is True
    assert [check["name"] for check in told["checks"]] == NAMES
    assert all(list(check) == ["name", "status", "finding", "advice"] for check in told["checks"])


def test_it_leaves_nothing_behind(tmp_path: Path) -> None:
    check_disk(str(tmp_path))
    check_disk(str(tmp_path / "not" / "there"))
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there_is_looked_at_where_it_would_be(tmp_path: Path) -> None:
    finding = check_disk(str(tmp_path / "data"))[0]
    assert (finding.status, finding.finding) == (
        Status.GOOD,
        f"{tmp_path}/data, not there yet; looked at {tmp_path}",
    )


def test_a_file_in_the_way_is_bad(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run("doctor", "--data", tmp_path / "file" / "data")
    assert result.returncode == 1
    assert f"bad      data directory: {tmp_path}/file/data: {tmp_path}/file is a file" in result.stdout


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a tmpfs at /dev/shm")
def test_memory_is_no_disk() -> None:
    finding = by_name(check_disk("/dev/shm/flowstone-data"))["file system"]
    assert (finding.status, finding.finding) == (Status.WARNING, "tmpfs")


def test_little_room_and_slow_flushes_are_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_checks, "FREE_BYTES_MIN", 1 << 62)
    monkeypatch.setattr(disk_checks, "FLUSH_SLOW_MS", 0)
    findings = by_name(check_disk(str(tmp_path)))
    assert findings["disk space"].status is findings["flush"].status is Status.WARNING


def test_a_broker_that_was_named_must_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    finding = check_broker(address)
    assert finding.status is Status.BAD
    assert f"cannot reach a broker at {address}" in finding.finding


def test_a_kernel_that_is_not_native_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "KERNEL", "python")
    monkeypatch.delattr(kernel, "native", raising=False)
    monkeypatch.setitem(sys.modules, "flowstone.kernel.native", None)
    finding = check_kernel()
    assert finding.status is Status.WARNING
    assert "flowstone.kernel.native" in finding.finding
    assert "python -m flowstone.kernel.build" in finding.advice


def test_few_descriptors_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _which: (256, 1024))
    finding = check_open_files()
    assert (finding.status, finding.finding) == (Status.WARNING, "256 now, which a broker raises to 1024")
