"""`flowstone pipeline letters`: lists, shows, retries and drops the dead letters of a pipeline."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.json_output import JsonOutput, Yes, confirm, encode, print_document
from flowstone.cli.common.text import counted, screen_width, table
from flowstone.cli.common.times import format_time
from flowstone.cli.pipeline.common import Directory, Master, PipelineBootstrap, exit_statuses, load_model

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flowstone.pipeline.model import PipelineModel
    from flowstone.pipeline.operations.letters.reading import Letter

LIMIT_DEFAULT, LIMIT_MAX = 50, 1_000_000
VALUE_SHOWN = 60

Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Letters, as `letters list` names them.")]
All = Annotated[bool, typer.Option("--all", help="All open letters.")]
Cause = Annotated[str, typer.Option(metavar="CLASS", help="Only letters with this class of cause.")]


def register(app: typer.Typer) -> None:
    letters = typer.Typer(
        help="List, retry and drop dead letters: records that a pipeline could not process.", no_args_is_help=True
    )
    letters.command("list")(list_letters)
    letters.command("show")(show)
    letters.command("retry")(retry)
    letters.command("drop")(drop)
    app.add_typer(letters, name="letters")


def list_letters(
    directory: Directory,
    cause: Cause = "",
    done: Annotated[bool, typer.Option("--done", help="Also those that were retried or dropped.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=LIMIT_MAX, metavar="N", help="Show at most N.")] = LIMIT_DEFAULT,
    json_output: JsonOutput = False,
    bootstrap: PipelineBootstrap = "",
) -> None:
    """List the open dead letters of a pipeline with their causes."""
    with exit_statuses():
        model = load_model(directory, bootstrap)
        found = (each for each in _all(model) if (done or each.status == "open") and _has_cause(each, cause))
        shown = list(islice(found, limit))
        more = sum(1 for _ in found)
    if json_output:
        for each in shown:
            print(encode(_document(each)))
        return
    names = ["letter", "time", "record", "status", "cause", "message", "value"]
    if shown:
        print(table(names, [_row(each) for each in shown], screen_width()))
        classes = Counter(each.cause.get("exception.class.name", "?") for each in shown)
        causes = ", ".join(f"{name} {count}" for name, count in classes.most_common())
        print(f"{counted(len(shown), 'letter')} ({causes}){f', and {more} more: --limit' if more else ''}")
    else:
        print(f"no {'' if done else 'open '}dead letters in {model.letters_topic}")


def show(
    directory: Directory,
    letter: Annotated[str, typer.Argument(metavar="ID", help="A letter, as `letters list` names it.")],
    json_output: JsonOutput = False,
    bootstrap: PipelineBootstrap = "",
) -> None:
    """Print one dead letter with its cause, its headers and its bytes."""
    with exit_statuses():
        model = load_model(directory, bootstrap)
        found = next((each for each in _all(model) if each.id == letter), None)
    if found is None:
        raise CommandError(f"there is no letter {letter} in the topic {model.letters_topic}")
    document = _document(found)
    if json_output:
        print_document(document)
        return
    cause = document.pop("cause")
    for name, value in {**document, **{f"cause {name}": value for name, value in cause.items()}}.items():
        print(f"{name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")


def retry(
    directory: Directory,
    letters: Ids = None,
    all_letters: All = False,
    cause: Cause = "",
    to_source: Annotated[
        bool, typer.Option("--to-source", help="Write the letters back to their source topics as new records instead.")
    ] = False,
    master: Master = "",
    json_output: JsonOutput = False,
    bootstrap: PipelineBootstrap = "",
) -> None:
    """Process dead letters again with the current pipeline and write their rows to its sinks.

    Letters that fail again become new letters. The pipeline may be running at the same time.
    """
    from flowstone.pipeline.engine.session import open_session, ship
    from flowstone.pipeline.operations.claims import beside_run
    from flowstone.pipeline.operations.letters.reading import chosen, record_of
    from flowstone.pipeline.operations.letters.retrying import retry as retry_letters

    wanted = _wanted(letters, all_letters, cause)
    with exit_statuses():
        model = load_model(directory, bootstrap)
        with beside_run(model, "letters retry") as store:
            found = chosen(model, record_of(model, store), letters or (), wanted)
            spark = open_session(model, master, is_brief=True)
            ship(model)
            done = retry_letters(spark, model, store, found, to_source=to_source)
    if json_output:
        print_document(
            {
                "retried": done.letters,
                "rows_out": done.rows_out,
                "letters_again": done.letters_again,
                "without_origin": done.without_origin,
            }
        )
        return
    outputs = "".join(f", {counted(count, 'row')} to {sink}" for sink, count in done.rows_out.items())
    print(f"{counted(done.letters, 'letter')} retried{outputs}; {done.letters_again} failed again")
    if done.without_origin:
        print(f"{counted(done.without_origin, 'letter')} cannot be retried: the steps dropped the column _record")


def drop(
    directory: Directory,
    letters: Ids = None,
    all_letters: All = False,
    cause: Cause = "",
    yes: Yes = False,
    json_output: JsonOutput = False,
    bootstrap: PipelineBootstrap = "",
) -> None:
    """Mark dead letters as settled, so that they are not listed or retried. Their records stay in the topic."""
    from flowstone.pipeline.operations.claims import beside_run
    from flowstone.pipeline.operations.letters.reading import chosen, record_of
    from flowstone.pipeline.operations.letters.reading import drop as drop_letters

    wanted = _wanted(letters, all_letters, cause)
    with exit_statuses():
        model = load_model(directory, bootstrap)
        with beside_run(model, "letters drop") as store:
            found = chosen(model, record_of(model, store), letters or (), wanted)
            if found and not yes:
                confirm(f"{counted(len(found), 'letter')} will be dropped, and not be retried any more")
            drop_letters(model, store, found)
    if json_output:
        print_document({"dropped": len(found)})
    else:
        print(f"{counted(len(found), 'letter')} dropped")


def _wanted(ids: Sequence[str] | None, all_letters: bool, cause: str) -> Callable[[Letter], bool]:
    if bool(ids) + (all_letters or bool(cause)) != 1:
        raise CommandError("say which letters: their ids, --all, or --cause CLASS")
    return lambda each: _has_cause(each, cause)


def _has_cause(letter: Letter, cause: str) -> bool:
    return not cause or letter.cause.get("exception.class.name") == cause


def _all(model: PipelineModel) -> Any:
    from flowstone.pipeline.operations.letters.reading import read_letters, record_of
    from flowstone.pipeline.state import StateStore

    with StateStore(model.bootstrap, model.name) as store:
        record = record_of(model, store)
    return read_letters(model, record)


def _document(each: Letter) -> dict[str, Any]:
    return {
        "letter": each.id,
        "status": each.status,
        "time": each.timestamp_ms,
        "record": each.origin,
        "cause": dict(each.cause),
        "headers": [[name, _text(value)] for name, value in each.headers],
        "key": _text(each.key),
        "value": _text(each.value),
        "value_hex": None if each.value is None else each.value.hex(),
    }


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="backslashreplace")


def _row(each: Letter) -> list[str]:
    value = (_text(each.value) or "-")[:VALUE_SHOWN]
    cause = [each.cause.get(name, "-") for name in ("exception.class.name", "exception.message")]
    return [each.id, format_time(each.timestamp_ms), each.origin or "-", each.status, *cause, value]
