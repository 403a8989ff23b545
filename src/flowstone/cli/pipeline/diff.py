"""`flowstone pipeline diff`: compares what two versions of a pipeline make of the same records."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.cli.common.text import screen_width, table
from flowstone.cli.pipeline.common import Directory, Master, PipelineBootstrap, exit_statuses, load_model

if TYPE_CHECKING:
    from flowstone.pipeline.operations.diff import Diff, Example, SinkDiff

RECORDS_DEFAULT = 100_000
RECORDS_MAX = 10**12
EXAMPLES_MAX = 1000
EXIT_DIFFERENT = 1

From = Annotated[
    str, typer.Option("--from", metavar="POSITION", help="earliest, latest, a time in ISO 8601, or offsets as JSON.")
]
To = Annotated[str, typer.Option("--to", metavar="POSITION", help="The end: a position like --from.")]


def register(app: typer.Typer) -> None:
    app.command("diff")(diff)


def diff(
    directory: Directory,
    against: Annotated[
        str, typer.Option(metavar="REVISION|DIR", help="The old code: a revision of git, or another directory.")
    ] = "HEAD",
    start: From = "earliest",
    end: To = "latest",
    records: Annotated[
        int,
        typer.Option(min=1, max=RECORDS_MAX, metavar="N", help="Read at most the last N records of each partition."),
    ] = RECORDS_DEFAULT,
    examples: Annotated[
        int, typer.Option(min=0, max=EXAMPLES_MAX, metavar="N", help="Show N rows of each kind of difference.")
    ] = 5,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if there are differences.")] = False,
    master: Master = "",
    json_output: JsonOutput = False,
    bootstrap: PipelineBootstrap = "",
) -> None:
    """Compare the rows that the old and the new code produce from the same records. Nothing is written."""
    from flowstone.pipeline.engine.session import open_session, ship
    from flowstone.pipeline.operations.diff import diff as compare
    from flowstone.pipeline.operations.ranges import pin
    from flowstone.pipeline.operations.revisions import version

    with exit_statuses(), version(directory, against) as other:
        old = load_model(other, bootstrap)
        spark = open_session(old, master, is_brief=True)
        ship(old)
        new = load_model(directory, bootstrap)
        ship(new)
        ranges = pin(new, start, end, last_max=records)
        found = compare(spark, old, new, {**pin(old, start, end, last_max=records), **ranges}, examples)
    if json_output:
        print_document(_document(found))
    else:
        print("\n".join(_lines(found)))
    if exit_code and not found.is_equal:
        raise typer.Exit(EXIT_DIFFERENT)


def _document(found: Diff) -> dict[str, Any]:
    return {
        "equal": found.is_equal,
        "offsets": {
            name: {"from": json.loads(each.as_range().starting), "to": json.loads(each.as_range().ending)}
            for name, each in found.ranges.items()
        },
        "sinks": [asdict(each) for each in found.sinks],
        "only_old": list(found.only_old),
        "only_new": list(found.only_new),
    }


def _lines(found: Diff) -> list[str]:
    offsets = sum(each.count for each in found.ranges.values())
    names = ["sink", "rows old", "rows new", "added", "removed", "changed"]
    rows = [
        [each.sink, *map(str, (each.rows_old, each.rows_new, each.added, each.removed, each.changed))]
        for each in found.sinks
    ]
    lines = [f"{offsets} offsets read by both", table(names, rows, screen_width())]
    lines += [f"sink {name} is only in the old code" for name in found.only_old]
    lines += [f"sink {name} is only in the new code" for name in found.only_new]
    for sink in found.sinks:
        lines += [f"{sink.sink}: {each}" for each in sink.columns]
        lines += [line for each in sink.examples for line in _example(sink, each)]
    return [*lines, "no difference" if found.is_equal else "there are differences"]


def _example(sink: SinkDiff, each: Example) -> list[str]:
    about = f"{sink.sink}{f' {each.id}' if each.id else ''}"
    if each.old is None or each.new is None:
        kind, row = ("added", each.new) if each.old is None else ("removed", each.old)
        return [f"{about}: {kind} {json.dumps(row, ensure_ascii=False)}"]
    names = [name for name in {**each.old, **each.new} if each.old.get(name) != each.new.get(name)]
    shown = ", ".join(f"{name}: {_cell(each.old, name)} -> {_cell(each.new, name)}" for name in names)
    return [f"{about}: {shown}"]


def _cell(row: Any, name: str) -> str:
    return json.dumps(row[name], ensure_ascii=False) if name in row else "(no column)"
