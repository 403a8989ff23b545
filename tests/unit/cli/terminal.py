"""A terminal with a person's eyes: a command runs in it, and what counts is what stands on the screen.

It needs util-linux's `setsid`, for Ctrl-C to reach the command as it does from a keyboard.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pyte
import pytest

LINES = 30
TIMEOUT_S = 60


class Terminal:
    def __init__(self, *arguments: str, columns: int, directory: Path, environment: dict[str, str]) -> None:
        setsid = shutil.which("setsid")
        if setsid is None:
            pytest.skip("needs setsid")
        self._ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, columns, 0, 0))
        self._screen = pyte.Screen(columns, LINES)
        self._stream = pyte.ByteStream(self._screen)
        self.seen = b""
        self.process = subprocess.Popen(
            [setsid, "--ctty", sys.executable, "-m", "flowstone.cli", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=directory,
            env={**{name: value for name, value in environment.items() if name != "COLUMNS"}, "TERM": "xterm"},
        )
        os.close(theirs)

    @property
    def text(self) -> str:
        """The screen as it is now, without what is blank at the ends."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    def wait_for(self, text: str) -> None:
        """Until the text has been written, wherever it is by now."""
        while text.encode() not in self.seen:
            assert self._read(), f"{text!r} never came: {self.text}"

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def end(self) -> int:
        """The exit status; the screen is then what it leaves behind."""
        while self._read():
            pass
        return self.process.wait(TIMEOUT_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._ours], [], [], TIMEOUT_S)
        assert ready, f"nothing new on the screen for {TIMEOUT_S} s: {self.text}"
        try:
            data = os.read(self._ours, 1 << 16)
        except OSError:  # EIO: the command's end is closed
            return False
        self.seen += data
        self._stream.feed(data)
        return bool(data)
