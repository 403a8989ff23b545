"""`flowstone pipeline graph`: prints a pipeline as a Mermaid flowchart."""

from __future__ import annotations

import typer

from flowstone.cli.pipeline.common import Directory, exit_statuses, load_model


def register(app: typer.Typer) -> None:
    app.command("graph")(graph)


def graph(directory: Directory) -> None:
    """Print a pipeline as a Mermaid flowchart, which GitHub and many editors draw. Needs neither broker nor Spark."""
    from flowstone.pipeline.operations.graph import mermaid

    with exit_statuses():
        print(mermaid(load_model(directory)))
