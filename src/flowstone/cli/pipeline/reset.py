"""`flowstone pipeline reset`: has a pipeline start again at a named position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from flowstone.cli.common.json_output import JsonOutput, Yes, confirm, print_document
from flowstone.cli.common.text import counted
from flowstone.cli.pipeline.common import Directory, PipelineBootstrap, exit_statuses, load_model

if TYPE_CHECKING:
    from flowstone.pipeline.operations.reset import QueryReset, Reset


def register(app: typer.Typer) -> None:
    app.command("reset")(reset)


def reset(
    directory: Directory,
    to: Annotated[
        str,
        typer.Option(
            metavar="POSITION|POINT",
            help="earliest, latest, a time in ISO 8601, offsets as JSON, or the name of a saved point.",
        ),
    ],
    query: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this query; repeatable. Default: all.")
    ] = None,
    save_as: Annotated[
        str, typer.Option(metavar="NAME", help="The name of the saved point; default: a name with the time.")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would happen.")] = False,
    yes: Yes = False,
    json_output: JsonOutput = False,
    bootstrap: PipelineBootstrap = "",
) -> None:
    """Set the position at which a pipeline starts again. The previous state is saved as a point for a later reset.

    The pipeline must not be running. Rows of records that are read again are written again.
    """
    from flowstone.pipeline.operations.claims import instead_of_run
    from flowstone.pipeline.operations.reset import apply, plan_reset

    with exit_statuses():
        model = load_model(directory, bootstrap)
        with instead_of_run(model, "reset") as store:
            found = plan_reset(model, store, to, query or (), save_as)
            if not dry_run:
                if not yes:
                    confirm("; ".join(map(_sentence, found.queries)))
                apply(model, store, found)
    _report(found, dry_run=dry_run, json_output=json_output)


def _report(found: Reset, *, dry_run: bool, json_output: bool) -> None:
    if json_output:
        queries = [
            {
                "query": each.query,
                "records_again": each.records_again,
                "positions": dict(each.positions),
                "checkpoint": each.checkpoint.path,
            }
            for each in found.queries
        ]
        print_document({"done": not dry_run, "point": None if dry_run else found.saved.name, "queries": queries})
        return
    for each in found.queries:
        print(_sentence(each))
    print("nothing was changed" if dry_run else f"the state before is saved: undo with `reset --to {found.saved.name}`")


def _sentence(each: QueryReset) -> str:
    number = each.records_again
    if number < 0:
        return f"query {each.query} skips {counted(-number, 'record')}"
    return f"query {each.query} reads {counted(number, 'record')} again, and writes their rows again"
