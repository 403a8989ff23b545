"""`flowstone pipeline check`: finds what is wrong with a pipeline without writing anything."""

from __future__ import annotations

import typer

from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.cli.common.text import counted
from flowstone.cli.pipeline.common import EXIT_DECLARATION, Directory, PipelineBootstrap, exit_statuses, load_model


def register(app: typer.Typer) -> None:
    app.command("check")(check)


def check(directory: Directory, json_output: JsonOutput = False, bootstrap: PipelineBootstrap = "") -> None:
    """Check a pipeline's declaration, its broker and topics, and all steps with Spark. Nothing is written."""
    from flowstone.pipeline.engine.session import open_session
    from flowstone.pipeline.operations.check import check as check_pipeline

    with exit_statuses():
        model = load_model(directory, bootstrap)
        problems, queries = check_pipeline(model, lambda: open_session(model, "local[1]", is_brief=True))
    if json_output:
        found = [{"place": str(each.place) if each.place else None, "message": str(each)} for each in problems]
        print_document({"pipeline": model.name, "problems": found, "queries": [each.name for each in queries]})
    else:
        for each in problems:
            print(each)
        nodes = f"{counted(len(model.sources), 'source')}, {counted(len(model.steps), 'step')}"
        if not problems:
            print(f"{model.name} is fine: {nodes}, {counted(len(model.sinks), 'sink')}, {len(queries)} to run")
    if problems:
        raise typer.Exit(EXIT_DECLARATION)
