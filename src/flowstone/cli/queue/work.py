"""`flowstone queue work`: runs a shell command for each record of a topic; its exit status decides what becomes of it.

The record's value is the command's standard input; its place and key are environment variables. Several commands may
run at once; each has a thread that waits for it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from typing import Annotated, Any

import typer

from flowstone.cli.common.clients import DEFAULT_BOOTSTRAP, Bootstrap, check_reachable
from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.numbers import SECONDS_MAX, finite
from flowstone.cli.common.text import counted
from flowstone.client.errors import ClientError
from flowstone.queues.queue import Queue
from flowstone.queues.task import Task

# Exit statuses of sysexits.h with a meaning here.
REJECT_STATUS, RETRY_STATUS = 65, 75
CONCURRENCY_MAX = 256


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Work on the records of a topic one by one.", rich_markup_mode=None)
    group.callback()(_only_subcommands)
    group.command("work")(work)
    app.add_typer(group, name="queue", no_args_is_help=True)


def _only_subcommands() -> None:
    """Keep `work` a command of its own: typer would merge the only command of a group into it."""


def work(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic whose records are the tasks.")],
    group: Annotated[str, typer.Option(metavar="G", help="The share group that works on the topic.")],
    command: Annotated[str, typer.Option("--exec", metavar="CMD", help="The shell command to run for each record.")],
    concurrency: Annotated[
        int, typer.Option(metavar="N", min=1, max=CONCURRENCY_MAX, help="Commands that run at the same time.")
    ] = 1,
    retry_after: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0, max=SECONDS_MAX, callback=finite, help="Pause before a failed record's next try."
        ),
    ] = 0.0,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=0.001, max=SECONDS_MAX, callback=finite, help="Kill a command that takes longer."
        ),
    ] = None,
    idle: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.001,
            max=SECONDS_MAX,
            callback=finite,
            help="End when no record has arrived for this time.",
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Run a command for each record of a topic, and accept, retry or reject the record by its exit status.

    Status 0 accepts the record, 65 (EX_DATAERR) rejects it; any other releases it for another attempt, until the
    group's share.delivery.count.limit.
    """
    check_reachable(bootstrap)
    worker = _Worker(command, retry_after, timeout)
    try:
        queue = Queue(topic, group=group, bootstrap=bootstrap, in_flight=2 * concurrency, idle_s=idle)
    except (ValueError, ClientError) as error:
        raise CommandError(str(error)) from None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: queue.stop())
    try:
        with queue:
            queue.run(worker.run, threads=concurrency)
    except ClientError as error:
        raise CommandError(str(error)) from None
    counts = ", ".join(f"{number} {outcome}" for outcome, number in sorted(worker.counts.items()))
    print(f"{counted(worker.counts.total(), 'run')}{': ' if counts else ''}{counts}", file=sys.stderr)


class _Worker:
    def __init__(self, command: str, retry_after_s: float, timeout_s: float | None) -> None:
        self._command, self._retry_after_s, self._timeout_s = command, retry_after_s, timeout_s
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()

    def run(self, task: Task) -> None:
        """Run the command for one task, and settle it."""
        try:
            done = subprocess.run(
                self._command,
                shell=True,
                input=task.value or b"",
                env={**os.environ, **_environment(task)},
                timeout=self._timeout_s,
                check=False,
                start_new_session=True,  # Ctrl-C ends the worker, which lets its commands finish
            )
            status = done.returncode
        except subprocess.TimeoutExpired:
            status = RETRY_STATUS
        if status == 0:
            outcome = "accepted"
            task.accept()
        elif status == REJECT_STATUS:
            outcome = "rejected"
            task.reject(f"{self._command} ended with status {status}")
        else:
            outcome = "failed"
            task.retry(self._retry_after_s)
        with self._lock:
            self.counts[outcome] += 1


def _environment(task: Task) -> dict[str, str]:
    about: dict[str, Any] = {
        "TOPIC": task.topic,
        "PARTITION": task.partition,
        "OFFSET": task.offset,
        "TIMESTAMP_MS": task.timestamp_ms,
        "ATTEMPT": task.attempt,
        "KEY": (task.key or b"").decode(errors="replace").replace("\0", ""),
    }
    return {f"FLOWSTONE_{name}": str(value) for name, value in about.items()}
