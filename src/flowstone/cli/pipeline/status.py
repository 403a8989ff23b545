"""`flowstone pipeline status`: prints how a pipeline is doing, from its state on the broker."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.cli.common.text import screen_width, table
from flowstone.cli.common.times import format_time
from flowstone.cli.pipeline.common import Directory, PipelineBootstrap, exit_statuses, load_model

if TYPE_CHECKING:
    from flowstone.pipeline.operations.status import QueryStatus, Status
    from flowstone.pipeline.state import RunRecord

RUNS_SHOWN_MAX = ERRORS_SHOWN_MAX = 5


def register(app: typer.Typer) -> None:
    app.command("status")(status)


def status(directory: Directory, json_output: JsonOutput = False, bootstrap: PipelineBootstrap = "") -> None:
    """Print the runs, lag, counters and last errors of a pipeline, whether or not it is running."""
    from flowstone.pipeline.operations.status import status as find_status

    with exit_statuses():
        model = load_model(directory, bootstrap)
        found = find_status(model.bootstrap, model.name)
    if json_output:
        print_document(_document(found))
    else:
        print("\n\n".join(_paragraphs(found)))


def _document(found: Status) -> dict[str, Any]:
    state = found.state
    return {
        "pipeline": state.pipeline,
        "running": found.live is not None and found.live.purpose == "run",
        "queries": [
            {
                "query": each.name,
                "lag_records": each.lag_records,
                "lag_seconds": each.lag_s,
                "checkpoint": each.checkpoint,
                "progress": asdict(each.progress) if each.progress else None,
            }
            for each in found.queries
        ],
        "runs": [asdict(each) for each in state.runs],
        "errors": [asdict(each) for each in state.errors],
        "points": [each.name for each in state.points],
    }


def _paragraphs(found: Status) -> list[str]:
    state, width = found.state, screen_width()
    if state.is_empty:
        return [f"{state.pipeline} has never run"]
    parts = [_headline(found)]
    if found.queries:
        names = ["query", "lag", "lag s", "batches", "read", "rows/s", "letters", "batch ms"]
        parts.append(table(names, [_row(each) for each in found.queries], width))
    outputs = [
        [each.name, sink, str(count)]
        for each in found.queries
        if each.progress
        for sink, count in sorted(each.progress.rows_out.items())
    ]
    if outputs:
        parts.append(table(["query", "sink", "rows"], outputs, width))
    unmet = [
        [each.name, name, str(count)]
        for each in found.queries
        if each.progress
        for name, count in sorted(each.progress.expectations.items())
    ]
    if unmet:
        parts.append(table(["query", "not met", "rows"], unmet, width))
    if state.runs:
        names = ["run", "started", "ended", "read", "written", "letters", "restarts", "reason"]
        parts.append(table(names, [_run_row(each) for each in state.runs[:RUNS_SHOWN_MAX]], width))
    errors = state.errors[:ERRORS_SHOWN_MAX]
    return parts + [f"error of query {each.query} at {format_time(each.at_ms)}: {each.message}" for each in errors]


def _headline(found: Status) -> str:
    live, name = found.live, found.state.pipeline
    if live is None:
        return f"{name} is not running"
    doing = "is running" if live.purpose == "run" else f"is being changed by `flowstone pipeline {live.purpose}`"
    return f"{name} {doing}: process {live.pid} on {live.host} since {format_time(live.since_ms)}"


def _row(each: QueryStatus) -> list[str]:
    done = each.progress
    counts = [done.batches, done.rows_in, done.rows_per_s, done.letters, done.duration_ms] if done else ["-"] * 5
    lags = ["-" if value is None else f"{value:g}" for value in (each.lag_records, each.lag_s)]
    return [each.name, *lags, *map(str, counts)]


def _run_row(run: RunRecord) -> list[str]:
    ended = format_time(run.ended_at_ms) if run.ended_at_ms else "-"
    counts = [str(each) for each in (run.rows_in, run.rows_out, run.letters, run.restarts)]
    return [str(run.number), format_time(run.started_at_ms), ended, *counts, run.reason or "-"]
