"""`flowstone pipeline test`: runs the tests that a pipeline declares, on a broker of their own."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowstone.cli.common.errors import EXIT_FAILURE
from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.cli.common.text import counted
from flowstone.cli.pipeline.common import Directory, exit_statuses, load_model

if TYPE_CHECKING:
    from flowstone.pipeline.operations.cases import CaseResult

ROWS_SHOWN_MAX = 10


def register(app: typer.Typer) -> None:
    app.command("test")(run_tests)


def run_tests(
    directory: Directory,
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Run only this test; may be repeated.")] = None,
    json_output: JsonOutput = False,
) -> None:
    """Run the tests of a pipeline: rows of its sources in, expected rows out. No broker is needed."""
    from flowstone.pipeline.engine.session import open_session
    from flowstone.pipeline.operations.cases import run_cases

    with exit_statuses():
        model = load_model(directory)
        failed, started_s = 0, time.monotonic()
        for result in run_cases(lambda: open_session(model, "local[2]", is_brief=True), model, tuple(only or ())):
            failed += not result.is_passed
            seconds, started_s = time.monotonic() - started_s, time.monotonic()
            if json_output:
                print_document(_document(result, seconds))
            else:
                print(f"{'ok' if result.is_passed else 'FAILED'}  {result.case.name}  ({seconds:.1f} s)", flush=True)
                for line in _differences(result):
                    print(f"    {line}", flush=True)
    if not json_output:
        print(f"{counted(len(only if only else model.cases), 'test')}, {failed} failed")
    if failed:
        raise typer.Exit(EXIT_FAILURE)


def _document(result: CaseResult, seconds: float) -> dict[str, Any]:
    nodes = {
        name: {"missing": [dict(row) for row in each.missing], "unexpected": [dict(row) for row in each.unexpected]}
        for name, each in result.comparisons.items()
    }
    place = str(result.case.declared_at) if result.case.declared_at else None
    return {
        "test": result.case.name,
        "place": place,
        "passed": result.is_passed,
        "seconds": round(seconds, 2),
        "nodes": nodes,
    }


def _differences(result: CaseResult) -> list[str]:
    lines = []
    for name, each in result.comparisons.items():
        for what, rows in (("missing", each.missing), ("unexpected", each.unexpected)):
            lines += [f"{name}: {what} {_shown(row)}" for row in rows[:ROWS_SHOWN_MAX]]
            if len(rows) > ROWS_SHOWN_MAX:
                lines.append(f"{name}: {len(rows) - ROWS_SHOWN_MAX} more {what} rows")
    if lines and result.case.declared_at:
        lines.append(f"declared at {result.case.declared_at}")
    return lines


def _shown(row: Any) -> str:
    return json.dumps(row, ensure_ascii=False, default=str)
