"""`flowstone pipeline replay` and `backfill`: process records of the past again."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.json_output import JsonOutput, Yes, confirm, print_document
from flowstone.cli.common.text import counted
from flowstone.cli.pipeline.common import Directory, Master, PipelineBootstrap, exit_statuses, load_model
from flowstone.cli.pipeline.diff import From, To

if TYPE_CHECKING:
    from flowstone.pipeline.model import PipelineModel
    from flowstone.pipeline.operations.replay import Replayed
    from flowstone.pipeline.state import ReplayRecord, StateStore

OFFSETS_MAX = 10**9
CHUNK_DEFAULT = 200_000

Chunk = Annotated[
    int, typer.Option("--chunk", min=1, max=OFFSETS_MAX, metavar="N", help="Records of a partition in one transaction.")
]


def register(app: typer.Typer) -> None:
    app.command("replay")(replay)
    app.command("backfill")(backfill)


def replay(
    directory: Directory,
    start: From = "",
    end: To = "latest",
    aside: Annotated[
        str, typer.Option(metavar="SUFFIX", help="Write to topics and tables with this suffix instead of the sinks.")
    ] = "",
    chunk: Chunk = CHUNK_DEFAULT,
    resume: Annotated[bool, typer.Option("--continue", help="Finish the replay that was interrupted.")] = False,
    abandon: Annotated[bool, typer.Option("--abandon", help="Give up the replay that was interrupted.")] = False,
    yes: Yes = False,
    master: Master = "",
    json_output: JsonOutput = False,
    bootstrap: PipelineBootstrap = "",
) -> None:
    """Process a range of records again. The pipeline may be running at the same time.

    Rows are written to the sinks, in addition to existing rows, or with --aside to other topics and tables.
    """
    from flowstone.pipeline.engine.session import open_session, ship
    from flowstone.pipeline.operations.claims import beside_run
    from flowstone.pipeline.operations.replay import abandon as abandon_replay
    from flowstone.pipeline.operations.replay import interrupted
    from flowstone.pipeline.operations.replay import replay as process

    if bool(start) + resume + abandon != 1:
        raise CommandError("give --from and --to, or --continue, or --abandon")
    with exit_statuses():
        model = load_model(directory, bootstrap)
        with beside_run(model, "replay") as store:
            if abandon:
                print(f"{abandon_replay(store)} is given up; what it has written stays")
                return
            record = interrupted(model, store) if resume else _begun(model, store, start, end, aside, chunk, yes=yes)
            spark = open_session(model, master)
            ship(model)
            done = process(spark, model, store, record)
    _report(done, json_output=json_output)


def _begun(
    model: PipelineModel, store: StateStore, start: str, end: str, aside: str, chunk: int, *, yes: bool
) -> ReplayRecord:
    from flowstone.pipeline.operations.ranges import pin
    from flowstone.pipeline.operations.replay import start as begin

    ranges = pin(model, start, end)
    if not aside and not yes:
        offsets = sum(each.count for each in ranges.values())
        confirm(
            f"the rows of {counted(offsets, 'record')} will be written to the sinks again; --aside writes elsewhere"
        )
    return begin(model, store, ranges, aside, chunk)


def _report(done: Replayed, *, json_output: bool) -> None:
    if json_output:
        print_document(asdict(done))
        return
    outputs = "".join(f", {counted(count, 'row')} to {sink}" for sink, count in done.rows_out.items())
    chunks, letters = counted(done.chunks, "transaction"), counted(done.letters, "dead letter")
    print(f"{done.id} ended: {chunks}{outputs}, {letters}")


def backfill(
    directory: Directory,
    sink: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this table; repeatable. Default: all tables.")
    ] = None,
    start: From = "earliest",
    chunk: Chunk = CHUNK_DEFAULT,
    yes: Yes = False,
    master: Master = "",
    json_output: JsonOutput = False,
    bootstrap: PipelineBootstrap = "",
) -> None:
    """Recompute tables from their records with the current pipeline, then replace the old tables.

    The pipeline must not be running. The old tables are kept under other names.
    """
    from flowstone.pipeline.engine.session import open_session, ship
    from flowstone.pipeline.operations.backfill import backfill as compute
    from flowstone.pipeline.operations.backfill import chosen
    from flowstone.pipeline.operations.claims import instead_of_run

    with exit_statuses():
        model = load_model(directory, bootstrap)
        names = ", ".join(each.name for each in chosen(model, sink or ()))
        if not yes:
            confirm(f"{names} will be computed anew and replaced")
        with instead_of_run(model, "backfill") as store:
            spark = open_session(model, master)
            ship(model)
            found = compute(spark, model, store.load(), sink or (), start, chunk)
    if json_output:
        print_document({"tables": [asdict(each) for each in found]})
        return
    for each in found:
        before = f"; the old table is {each.before}" if each.before else ""
        print(f"{each.sink}: {counted(each.rows, 'row')} in {each.path}{before}")
