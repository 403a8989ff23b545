"""Starting and stopping, shown with small processes in a broker's place."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bench.servers import Server, ServerError, free_ports

READY_THEN_WAIT = "import sys; print('ready', flush=True); sys.stdin.close(); import signal; signal.pause()"
WITH_A_BUSY_CHILD = """
import signal, subprocess, sys
spin = "import time\\nwhile time.process_time() < 0.2: pass\\nprint('ready', flush=True); import signal; signal.pause()"
child = subprocess.Popen([sys.executable, "-c", spin])
signal.signal(signal.SIGTERM, lambda *_: (child.kill(), child.wait(), sys.exit(0)))
signal.pause()
"""


class Script(Server):
    name = "script"

    def __init__(self, code: str, folder: Path) -> None:
        super().__init__(folder=folder)
        self._code = code

    def _prepare(self) -> list[str]:
        return [sys.executable, "-c", self._code]

    def _ready(self) -> bool:
        return "ready" in self._output.read_text()


def test_after_a_server_its_process_and_its_data_are_gone(tmp_path: Path) -> None:
    with Script(READY_THEN_WAIT, tmp_path) as server:
        pid = server.pid
        assert list(tmp_path.iterdir()) != []
        assert server.peak_rss_mb() > 1
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_server_that_ends_at_once_says_what_it_said(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerError, match="script ended with exit 3: no such setting"),
        Script("import sys; print('no such setting'); sys.exit(3)", tmp_path),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_processor_time_counts_child_processes(tmp_path: Path) -> None:
    with Script(WITH_A_BUSY_CHILD, tmp_path) as server:
        assert server.cpu_seconds() >= 0.2


def test_free_ports_differ() -> None:
    assert len(set(free_ports(5))) == 5
