"""`flowstone up` that dies at an exact write or flush of a transaction, or notes down all of them.

    python dying_up.py ARM record FILE <arguments of flowstone up>
    python dying_up.py ARM CALL:NUMBER:MOMENT <arguments of flowstone up>

Calls count from when the file ARM is there. CALL is an operation of the file port and the place of what it is done to,
as `record` notes them: `write __transaction_state-0 .log`. With the place `*`, any will do.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flowstone.cli.up.command import run_up
from flowstone.ports.system_files import SystemFile, SystemFiles

OF_FILES, OF_DIRECTORIES = ("write", "sync", "truncate"), ("open", "replace", "rename", "remove", "sync_directory")
ANYWHERE = "*"

# Given the operation, the place, the call that does it, and its arguments.
Watch = Callable[[str, str, Callable[..., Any], tuple[Any, ...]], Any]


def place_of(path: str) -> str:
    """Return the partition's directory and the kind of file, or the directory alone."""
    directory, kind = os.path.dirname(path), os.path.splitext(path)[1]
    return f"{os.path.basename(directory)} {kind}" if kind else os.path.basename(path)


def watch_all(arm: str, watch: Watch) -> None:
    """Have every operation go through `watch` once the file is there."""
    SystemFiles.has_descriptors = False  # native threads would sync without a call
    owners: list[tuple[Any, tuple[str, ...]]] = [(SystemFile, OF_FILES), (SystemFiles, OF_DIRECTORIES)]
    for owner, operations in owners:
        for operation in operations:
            setattr(owner, operation, _watched(arm, watch, operation, getattr(owner, operation)))


def _watched(arm: str, watch: Watch, operation: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any, *arguments: Any, **more: Any) -> Any:
        if not os.path.exists(arm):
            return original(self, *arguments, **more)
        path = self.path if isinstance(self, SystemFile) else arguments[0]
        return watch(operation, place_of(path), lambda *each: original(self, *each, **more), arguments)

    return wrapped


def record(file: Path) -> Watch:
    def note(operation: str, place: str, call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        with file.open("a") as output:
            output.write(f"{operation} {place}\n")
        return call(*arguments)

    return note


def die_at(wanted: str, number: int, moment: str) -> Watch:
    """SIGKILL at a call of that number: before it, after it, or with half of a write done."""
    calls = itertools.count(1)
    wanted_operation, _, wanted_place = wanted.partition(" ")

    def die(operation: str, place: str, call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        is_meant = operation == wanted_operation and wanted_place in (place, ANYWHERE)
        if not is_meant or next(calls) != number:
            return call(*arguments)
        if moment == "half":
            position, buffers = arguments
            data = b"".join(buffers)
            call(position, [data[: len(data) // 2]])
        elif moment == "after":
            call(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()  # the signal is for the whole process: this thread must not go on
        raise AssertionError

    return die


if __name__ == "__main__":
    arm_file, how, *rest = sys.argv[1:]
    if how == "record":
        watch_all(arm_file, record(Path(rest.pop(0))))
    else:
        call_name, number_text, moment_name = how.split(":")
        watch_all(arm_file, die_at(call_name, int(number_text), moment_name))
    sys.exit(run_up(rest))
