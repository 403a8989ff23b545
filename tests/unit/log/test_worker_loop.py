"""The processes that scrub and compact: how one ends when its broker was killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

WORKER = "flowstone.log.scrubbing.worker"


def start() -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-m", WORKER], stdin=pipe, stdout=pipe, stderr=pipe)


def request(path: Path) -> bytes:
    return json.dumps({"segment": [str(path), 0, 0, 0], "bytes_per_s": 1}).encode() + b"\n"


def test_it_ends_with_its_input() -> None:
    with start() as worker:
        assert worker.communicate(b"", timeout=20) == (b"", b"")
    assert worker.returncode == 0


def test_the_worker_ends_silently_when_its_answer_has_no_reader(tmp_path: Path) -> None:
    """A killed broker's end of the answers may be closed before its end of the requests is seen to be."""
    with start() as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stderr is not None
        worker.stdout.close()
        worker.stdin.write(request(tmp_path / "missing"))
        worker.stdin.flush()
        assert worker.wait(20) == 0
        assert worker.stderr.read() == b""
