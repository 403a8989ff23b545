"""`flowstone pipeline compact`: makes few large files of the many small ones of a pipeline's tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.cli.common.text import counted
from flowstone.cli.pipeline.common import Directory, exit_statuses, load_model


def register(app: typer.Typer) -> None:
    app.command("compact")(compact)


def compact(
    directory: Directory,
    sink: Annotated[str, typer.Option(metavar="NAME", help="Only the table of this sink.")] = "",
    json_output: JsonOutput = False,
) -> None:
    """Compact the Delta and Iceberg tables of a pipeline, even while it runs, and delete unused files."""
    from flowstone.pipeline.operations.compact import compact as compact_tables

    with exit_statuses():
        for each, done in compact_tables(load_model(directory), sink):
            if json_output:
                print_document({"sink": each.name, **asdict(done)})
            else:
                print(
                    f"{each.name}: {counted(done.files_before, 'file')} before, {done.files_after} now, "
                    f"{counted(done.files_deleted, 'unused file')} deleted"
                )
