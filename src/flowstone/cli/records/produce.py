"""`flowstone produce`: writes lines of standard input, or the contents of a file, as records."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Annotated, BinaryIO, NamedTuple

import typer

from flowstone.cli.common.clients import DEFAULT_BOOTSTRAP, Bootstrap, TopicName
from flowstone.cli.common.errors import EXIT_INTERRUPTED, CommandError
from flowstone.cli.common.interrupts import Interrupts
from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.cli.common.numbers import SECONDS_MAX, finite
from flowstone.cli.common.progress import progress_bar
from flowstone.cli.common.text import counted
from flowstone.cli.records.record_sources import (
    FORMATS,
    Fields,
    Records,
    Shape,
    format_of,
    read_csv,
    read_jsonl,
    read_lines,
)
from flowstone.cli.records.sending import Header, Sender

ACKS = ("all", "1", "0")
DELIVERY_TIMEOUT_S = 30.0
SHOW_EVERY_RECORDS = 1000
STANDARD_INPUT = "the input"


def register(app: typer.Typer) -> None:
    app.command("produce")(produce)


def produce(
    topic: TopicName,
    file: Annotated[str | None, typer.Option(metavar="FILE", help="Read this file instead of standard input.")] = None,
    file_format: Annotated[
        str | None,
        typer.Option("--format", metavar="FORMAT", help=f"{', '.join(FORMATS)}; default: by the file name."),
    ] = None,
    key_separator: Annotated[
        str,
        typer.Option(metavar="TEXT", help="The text between key and value in a line; without it, records have no key."),
    ] = "",
    key_field: Annotated[
        str | None, typer.Option(metavar="NAME", help="The field of each object or row that contains the key.")
    ] = None,
    timestamp_field: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The field that contains the record's timestamp: milliseconds or ISO 8601."),
    ] = None,
    header_field: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A field to add as a header; repeatable.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header of every record; repeatable.")
    ] = None,
    acks: Annotated[
        str, typer.Option(help="Which replicas must have a record before it is acknowledged: all, 1 or 0.")
    ] = "all",
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.1,
            max=SECONDS_MAX,
            callback=finite,
            help="How long storing a record may take.",
        ),
    ] = DELIVERY_TIMEOUT_S,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Write lines from standard input, or a file of JSON lines, CSV or Parquet, to a topic; print how many were stored.

    Each object or row of a file becomes a record whose value is the object as JSON.
    """
    if acks not in ACKS:
        raise CommandError(f"--acks {acks}: expected {', '.join(ACKS)}")
    fields = Fields(key_field, timestamp_field, tuple(header_field or ()))
    asked_format = _format(file, file_format, key_separator, fields)
    shape = Shape(fields, [_header(each) for each in header or ()])
    with _open(file, asked_format, key_separator.encode(), shape) as source, Interrupts() as interrupts:
        sender = Sender(bootstrap, topic, acks, timeout)
        _send_all(source, sender, interrupts)
    cut_short = interrupts.heard and file is not None
    if json_output:
        print_document({"topic": topic, "stored": sender.stored, "interrupted": cut_short})
    else:
        end = f"; interrupted before the end of {file}" if cut_short else ""
        print(f"{'stored' if acks != '0' else 'sent'} {counted(sender.stored, 'record')}{end}")
    if cut_short:
        raise typer.Exit(EXIT_INTERRUPTED)


def _format(file: str | None, asked: str | None, key_separator: str, fields: Fields) -> str:
    if asked is not None and asked not in FORMATS:
        raise CommandError(f"--format {asked}: expected {', '.join(FORMATS)}")
    found = asked or (format_of(file) if file is not None else "lines")
    if found == "parquet" and file is None:
        raise CommandError("Parquet is not read from standard input: name the file with --file")
    if found == "lines" and fields.are_named:
        raise CommandError("lines have no fields: say --format jsonl or csv, or take the key with --key-separator")
    if found != "lines" and key_separator:
        raise CommandError(f"--key-separator is for lines; the key of {found} is one of its fields, --key-field NAME")
    return found


def _header(text: str) -> Header:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise CommandError(f"--header {text}: expected --header name=value")
    return name, value.encode()


class _Source(NamedTuple):
    records: Records
    label: str
    total: int | None  # None: the total is unknown
    position: Callable[[], int]


@contextmanager
def _open(path: str | None, source_format: str, separator: bytes, shape: Shape) -> Iterator[_Source]:
    """Open the input as a source of records. Raises CommandError if the file cannot be read."""
    if path is None:
        yield _Source(_read(sys.stdin.buffer, STANDARD_INPUT, source_format, separator, shape), "", None, int)
        return
    total: int | None = None
    position: Callable[[], int] = int
    with ExitStack() as stack:
        try:
            if source_format == "parquet":
                from flowstone.cli.records.parquet_source import ParquetRows

                rows = stack.enter_context(closing(ParquetRows(path)))
                records, total = rows.read(shape), rows.count
                position = partial(getattr, rows, "position")
            else:
                file = stack.enter_context(open(path, "rb"))
                records = _read(file, path, source_format, separator, shape)
                if file.seekable():  # a named pipe has no size
                    total, position = os.path.getsize(path), file.tell
        except OSError as error:
            raise CommandError(f"cannot read {path}: {error.strerror or error}") from None
        stack.enter_context(closing(records))
        yield _Source(records, os.path.basename(path), total, position)


def _read(file: BinaryIO, name: str, source_format: str, separator: bytes, shape: Shape) -> Records:
    match source_format:
        case "jsonl":
            return read_jsonl(file, name, shape)
        case "csv":
            return read_csv(file, name, shape)
        case _:
            return read_lines(file, name, separator, shape)


def _send_all(source: _Source, sender: Sender, interrupts: Interrupts) -> None:
    problem: CommandError | None = None
    with progress_bar(source.label, source.total) as advance:
        try:
            for number, record in enumerate(interrupts.read(source.records)):
                if not sender.send(record):
                    break
                if number % SHOW_EVERY_RECORDS == 0:
                    advance(source.position())
        except CommandError as error:
            problem = error
        sender.finish()
    if problem is not None:
        raise CommandError(f"{problem}; the records before it are stored ({counted(sender.stored, 'record')})")
