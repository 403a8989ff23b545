"""Runs many commands, each in a process of its own, without the price of loading them: a process that has loaded forks.

`python -m tests.unit.cli.fuzz_runner` reads one JSON document from standard input, a list of cases, and prints one line
of JSON for each when it has ended. A case that runs longer than it may is interrupted as by Ctrl-C, and killed if it
does not mind that. A command that says it is ready (`flowstone up`) is interrupted at once.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from contextlib import redirect_stdout, suppress
from dataclasses import asdict, dataclass
from typing import Any

from flowstone.cli.commands import GROUPS
from flowstone.cli.main import main

IN_FLIGHT_MAX = 4
POLL_S = 0.01
# After Ctrl-C.
GRACE_S = 10.0
OUTPUT_BYTES_MAX = 20_000
# What commands import when they run.
MODULES = (
    "flowstone.app",
    "flowstone.cli.up.command",
    "flowstone.pipeline.operations.run",
    "flowstone.pipeline.state",
    "duckdb",
    "pyarrow",
    "pydantic",
    "pyspark.sql",
    "yaml",
    "zoneinfo",
)


@dataclass
class Case:
    arguments: list[str]
    directory: str
    limit_s: float
    environment: dict[str, str]
    input: str = ""
    output: str = ""  # a file to write to; "": what is printed is kept


@dataclass
class Outcome:
    number: int
    status: int  # negative: ended by this signal
    seconds: float
    interrupted: bool
    killed: bool
    output: str
    errors: str


class _Child:
    def __init__(self, number: int, case: Case) -> None:
        self.number, self.case = number, case
        self.output, self.errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - closed in `_text`
        self.begun_s = time.monotonic()
        self.interrupted_at_s: float | None = None
        self.killed = False
        self.pid = os.fork()
        if self.pid == 0:
            os._exit(_run(case, self.output.fileno(), self.errors.fileno()))

    def look(self) -> Outcome | None:
        """The outcome, once it has ended."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        seconds = time.monotonic() - self.begun_s
        if pid == 0:
            if self.interrupted_at_s is None and (seconds > self.case.limit_s or self._is_ready()):
                self.interrupted_at_s = seconds
                os.kill(self.pid, signal.SIGINT)
            elif self.interrupted_at_s is not None and seconds > self.interrupted_at_s + GRACE_S and not self.killed:
                self.killed = True
                os.kill(self.pid, signal.SIGKILL)
            return None
        return Outcome(
            self.number,
            os.waitstatus_to_exitcode(status),
            seconds,
            self.interrupted_at_s is not None,
            self.killed,
            _text(self.output),
            _text(self.errors),
        )

    def _is_ready(self) -> bool:
        self.output.seek(0)
        return any(line.startswith(b"ready ") for line in self.output.read(OUTPUT_BYTES_MAX).splitlines())


def _text(file: Any) -> str:
    file.seek(0)
    with file:
        return str(file.read(OUTPUT_BYTES_MAX).decode(errors="replace"))


def _run(case: Case, output: int, errors: int) -> int:
    """In the child: its status."""
    source, sink = os.pipe()
    os.write(sink, case.input.encode(errors="surrogateescape"))
    os.close(sink)
    for descriptor, number in ((source, 0), (output, 1), (errors, 2)):
        os.dup2(descriptor, number)
    if case.output:
        os.dup2(os.open(case.output, os.O_WRONLY), 1)
    os.chdir(case.directory)
    os.environ.update(case.environment)
    sys.argv = ["flowstone", *case.arguments]
    try:
        main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0
    except BaseException:
        traceback.print_exc()
        status = 70
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        traceback.print_exc()
        status = 70
    return status


def run_all(cases: list[Case]) -> None:
    waiting = list(enumerate(cases))[::-1]
    children: list[_Child] = []
    while waiting or children:
        while waiting and len(children) < IN_FLIGHT_MAX:
            children.append(_Child(*waiting.pop()))
        for child in list(children):
            if (outcome := child.look()) is not None:
                children.remove(child)
                print(json.dumps(asdict(outcome)), flush=True)
        time.sleep(POLL_S)


def preload() -> None:
    """Import what commands import when they run, so that children need not."""
    for module in (*GROUPS.values(), *MODULES):
        importlib.import_module(module)
    sys.argv = ["flowstone", "topic", "list", "--help"]
    with redirect_stdout(io.StringIO()), suppress(SystemExit):
        main()


if __name__ == "__main__":
    preload()
    run_all([Case(**each) for each in json.load(sys.stdin)])
