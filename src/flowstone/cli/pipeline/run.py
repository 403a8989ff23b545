"""`flowstone pipeline run`: runs a pipeline in the foreground until it ends or is stopped."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING, Annotated

import typer

from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.cli.common.text import counted
from flowstone.cli.pipeline.common import Directory, Master, PipelineBootstrap, exit_statuses, load_model

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from flowstone.pipeline.engine.queries import Query
    from flowstone.pipeline.engine.running import BatchReport
    from flowstone.pipeline.operations.run import RunSummary

RESTARTS_MAX = 1_000_000


def register(app: typer.Typer) -> None:
    app.command("run")(run)


def run(
    directory: Directory,
    once: Annotated[bool, typer.Option("--once", help="Process the available records, then end.")] = False,
    master: Master = "",
    restarts: Annotated[
        int,
        typer.Option(
            min=0, max=RESTARTS_MAX, metavar="N", help="How often a query may fail in a row before the run ends."
        ),
    ] = 10,
    json_output: JsonOutput = False,
    bootstrap: PipelineBootstrap = "",
) -> None:
    """Run a pipeline in the foreground until it is stopped with Ctrl-C or SIGTERM.

    The run stops between two micro-batches. Exit status: 0: ended or stopped; 75: a problem that may be temporary (no
    broker, too many failures, another run is active); 78: the declaration must be changed; 1: any other error.
    """
    from flowstone.pipeline.operations.run import Reporter, RunOptions
    from flowstone.pipeline.operations.run import run as run_pipeline

    with exit_statuses():
        model = load_model(directory, bootstrap)
        stopping = threading.Event()
        _stop_on_signals(stopping)
        output = _Output(json_output, stopping)
        reporter = Reporter(output.started, output.finished, output.failed)
        summary = run_pipeline(model, RunOptions(once, master, restarts), stopping, reporter)
        output.ended(model.name, summary)


def _stop_on_signals(stopping: threading.Event) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, stop)


class _Output:
    """The output of a run: a line at its start, per failure, per REPORT_INTERVAL_S with rows, and at its end."""

    REPORT_INTERVAL_S = 10.0

    def __init__(self, is_json: bool, stopping: threading.Event) -> None:
        self._is_json, self._stopping = is_json, stopping
        self._guard = threading.Lock()
        self._rows: dict[str, int] = {}
        self._reported_s = time.monotonic()

    def started(self, queries: Sequence[Query]) -> None:
        _stop_on_signals(self._stopping)  # Spark's start installs a handler of its own
        names = ", ".join(each.name for each in queries)
        self._say({"event": "started", "queries": [each.name for each in queries]}, f"running: {names}")

    def finished(self, report: BatchReport) -> None:
        with self._guard:
            self._rows[report.query] = self._rows.get(report.query, 0) + report.rows_in
            now_s = time.monotonic()
            if now_s - self._reported_s < self.REPORT_INTERVAL_S:
                return
            since_s, self._reported_s = now_s - self._reported_s, now_s
            rows, self._rows = self._rows, {}
        text = ", ".join(f"{query} {counted(count, 'row')} in {since_s:.0f} s" for query, count in rows.items())
        self._say({"event": "progress", "rows_in": rows, "seconds": round(since_s, 1)}, text)

    def failed(self, query: str, message: str, restart_in_s: float | None) -> None:
        then = "it is not restarted" if restart_in_s is None else f"it is restarted in {restart_in_s:g} s"
        event: dict[str, object] = {"event": "failed", "query": query, "message": message, "restart_in_s": restart_in_s}
        self._say(event, f"query {query} failed, {then}: {message}")

    def ended(self, name: str, summary: RunSummary) -> None:
        event: dict[str, object] = {
            "event": summary.reason,
            "batches": summary.batches,
            "rows_in": summary.rows_in,
            "rows_out": summary.rows_out,
            "letters": summary.letters,
        }
        outputs = "".join(f", {counted(count, 'row')} to {sink}" for sink, count in summary.rows_out.items())
        rows = f"{counted(summary.rows_in, 'row')} read{outputs}, {counted(summary.letters, 'dead letter')}"
        self._say(event, f"{name} {summary.reason}: {rows}")

    def _say(self, event: dict[str, object], text: str) -> None:
        if self._is_json:
            print_document(event)
        else:
            print(text, flush=True)
