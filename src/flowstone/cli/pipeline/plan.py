"""`flowstone pipeline plan`: prints what changed since the last run, and what that does."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.cli.pipeline.common import (
    EXIT_DECLARATION,
    Directory,
    PipelineBootstrap,
    exit_statuses,
    load_model,
)

if TYPE_CHECKING:
    from flowstone.pipeline.operations.plan import Plan


def register(app: typer.Typer) -> None:
    app.command("plan")(plan)


def plan(directory: Directory, json_output: JsonOutput = False, bootstrap: PipelineBootstrap = "") -> None:
    """Print what changed since the last run, the effect on rows, and which checkpoints can be continued.

    The exit status is 78 if a checkpoint cannot be continued.
    """
    from flowstone.pipeline.engine.declaring import declaration
    from flowstone.pipeline.engine.queries import plan_queries
    from flowstone.pipeline.engine.session import open_session
    from flowstone.pipeline.operations.plan import plan as compare
    from flowstone.pipeline.state import StateStore

    with exit_statuses():
        model = load_model(directory, bootstrap)
        with StateStore(model.bootstrap, model.name) as store:
            state = store.load()
        before = state.query_names
        spark = open_session(model, "local[1]", is_brief=True)
        found = compare(state.declaration, declaration(model, plan_queries(spark, model, before)))
    if json_output:
        print_document({"first_run": found.is_first, "can_continue": found.can_continue, **_lists(found)})
    else:
        print("\n".join(_lines(found)))
    if not found.can_continue:
        raise typer.Exit(EXIT_DECLARATION)


def _lists(found: Plan) -> dict[str, object]:
    return {"nodes": [asdict(each) for each in found.nodes], "queries": [asdict(each) for each in found.queries]}


def _lines(found: Plan) -> list[str]:
    lines = []
    for each in found.nodes:
        parts = f" ({', '.join(each.parts)})" if each.parts else ""
        lines.append(f"{each.kind} {each.node} {each.change}{parts}: {each.consequence}")
    if not found.nodes:
        lines.append("the pipeline has not run before" if found.is_first else "nothing changed since the last run")
    return lines + [
        f"query {each.query} {each.checkpoint}{f': {each.reason}' if each.reason else ''}" for each in found.queries
    ]
