"""Standard output whose failures are not those of the files that a command reads and writes.

Where it cannot be written to, a write raises `OutputClosed` or a CommandError, neither of them an OSError: commands and
typer handle an OSError as one of their own, and would blame a file, or say what nobody wants to read. After a failure
everything written is dropped, so that the interpreter does not try, and complain, once more at its end.
"""

from __future__ import annotations

import io
import sys
from typing import Any

from flowstone.cli.common.errors import CommandError

_DESCRIPTOR = 1


class OutputClosed(Exception):
    """The reader of the command's output, such as `head`, has closed its end of the pipe."""


class StandardOutput(io.FileIO):
    """The file behind standard output."""

    def __init__(self) -> None:
        super().__init__(_DESCRIPTOR, "wb", closefd=False)
        self._has_failed = False

    def write(self, data: Any, /) -> int:
        """Write all of it. Raises OutputClosed, or CommandError; nothing once that has happened."""
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
    """Put a guarded standard output in the place of the interpreter's, if that is where it writes to.

    What the terminal's encoding does not have is printed as an escape.
    """
    output = sys.stdout
    if not isinstance(output, io.TextIOWrapper) or output.fileno() != _DESCRIPTOR:
        return  # a program that has replaced it gets what it has asked for
    output.flush()
    raw = StandardOutput()
    sys.stdout = io.TextIOWrapper(
        raw if output.write_through else io.BufferedWriter(raw),
        output.encoding,
        "backslashreplace",
        line_buffering=output.line_buffering,
        write_through=output.write_through,
    )
