"""`flowstone pipeline`: the commands that work on a pipeline's directory."""

from __future__ import annotations

from importlib import import_module

import typer

# In the order of the help. Each module has one command, or a few of one topic, and a function `register`.
MODULES = (
    "new", "check", "cases", "run", "status", "plan", "diff", "letters", "reset", "replay",
    "compact", "submit", "graph", "schema",
)  # fmt: skip


def register(app: typer.Typer) -> None:
    pipeline = typer.Typer(help="Declare, check, test and run data pipelines on Spark.", no_args_is_help=True)
    for name in MODULES:
        import_module(f"flowstone.cli.pipeline.{name}").register(pipeline)
    app.add_typer(pipeline, name="pipeline")
