"""`flowstone pipeline new`: writes an example pipeline into a directory."""

from __future__ import annotations

from typing import Annotated

import typer

from flowstone.cli.pipeline.common import Directory, exit_statuses


def register(app: typer.Typer) -> None:
    app.command("new")(new)


def new(
    directory: Directory,
    yaml: Annotated[bool, typer.Option("--yaml", help="Write pipeline.yaml instead of pipeline.py.")] = False,
) -> None:
    """Write a working example of a pipeline with a test into a new directory."""
    from flowstone.pipeline.operations.example import write_example

    with exit_statuses():
        for each in write_example(directory, is_yaml=yaml):
            print(f"wrote {each}")
    print(f"next: flowstone pipeline test {directory}")
