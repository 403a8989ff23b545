"""Standard output whose write errors differ from those of files that a command reads and writes.

A failed write raises `OutputClosed` or a CommandError, which are not OSErrors: commands and typer would handle an
OSError as their own, and blame a file or print an irrelevant message. After a failure all further output is dropped, so
that the interpreter does not report the error again when it exits.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

from flowstone.cli.common.errors import CommandError

_DESCRIPTOR = 1


class OutputClosed(Exception):
    """The reader of the command's output, such as `head`, has closed its end of the pipe."""


class StandardOutput(io.FileIO):
    """A replacement for the file behind standard output."""

    def __init__(self) -> None:
        super().__init__(_DESCRIPTOR, "wb", closefd=False)
        self._has_failed = False

    def write(self, data: Any, /) -> int:
        """Write all bytes, or nothing after an error. Raises OutputClosed or CommandError if the write fails."""
        left = memoryview(data).cast("B")
        while left and not self._has_failed:
            try:
                left = left[super().write(left) or 0 :]
            except BrokenPipeError:
                self._has_failed = True
                raise OutputClosed from None
            except OSError as error:
                self._has_failed = True
                raise CommandError(f"cannot write to standard output: {error.strerror}") from None
        return memoryview(data).nbytes


def guard_output() -> None:
    """Replace the interpreter's standard output by a guarded one, if it writes to the process's own.

    Characters that the terminal's encoding lacks are printed as escapes. Output of a process that was started with its
    standard output closed is dropped.
    """
    output = sys.stdout
    if output is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return
    if not isinstance(output, io.TextIOWrapper) or output.fileno() != _DESCRIPTOR:
        return  # a program that has replaced it keeps its replacement
    output.flush()
    raw = StandardOutput()
    sys.stdout = io.TextIOWrapper(
        raw if output.write_through else io.BufferedWriter(raw),
        output.encoding,
        "backslashreplace",
        line_buffering=output.line_buffering,
        write_through=output.write_through,
    )
