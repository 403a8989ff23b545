"""`flowstone consume`: prints a topic's records, from any offset or time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, BinaryIO

import typer
from confluent_kafka import Message

from flowstone.cli.common.clients import DEFAULT_BOOTSTRAP, Bootstrap, TopicName
from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.json_output import JsonOutput
from flowstone.cli.common.numbers import OFFSET_MAX, PARTITION_MAX
from flowstone.cli.common.text import counted
from flowstone.cli.common.times import parse_time
from flowstone.cli.records.reading import Reader
from flowstone.cli.records.record_forms import COLUMNS, Form, JsonValues, json_form, line_form


def register(app: typer.Typer) -> None:
    app.command("consume")(consume)


def consume(
    topic: TopicName,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="From the oldest record on: the default unless --follow is given.")
    ] = False,
    offset: Annotated[int | None, typer.Option(min=0, max=OFFSET_MAX, help="From this offset on.")] = None,
    timestamp: Annotated[
        str | None, typer.Option(metavar="TIME", help="From this time on: milliseconds since 1970, or ISO 8601.")
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, max=PARTITION_MAX, help="Only this partition.")] = None,
    max_records: Annotated[int | None, typer.Option("--max", metavar="N", min=1, help="At most N records.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait for new records at the end instead of stopping there.")
    ] = False,
    with_columns: Annotated[
        str, typer.Option("--with", metavar="COLUMNS", help=f"Print before each value, with tabs: {','.join(COLUMNS)}.")
    ] = "",
    decode: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="What values are: json shows them as JSON, not as text.")
    ] = None,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Print a topic's values, one per line."""
    if sum((from_beginning, offset is not None, timestamp is not None)) > 1:
        raise CommandError("--from-beginning, --offset and --timestamp exclude each other: give one of them")
    if decode not in (None, "json"):
        raise CommandError(f"--decode {decode}: expected --decode json")
    values = JsonValues() if decode == "json" else None
    form = json_form(values) if json_output else line_form(_columns(with_columns), values)
    start_ms = parse_time("--timestamp", timestamp) if timestamp is not None else None
    reader = Reader(bootstrap, topic, partition)
    try:
        if start_ms is not None:
            reader.seek_time(start_ms)
        elif offset is not None:
            reader.seek_offset(offset)
        elif follow and not from_beginning:
            reader.seek_end()
        _print_records(reader.read(follow=follow), form, max_records, sys.stdout.buffer)
    finally:
        reader.close()
    if values is not None and values.refused and not json_output:
        print(f"flowstone: {counted(values.refused, 'value')} printed as text, being no JSON", file=sys.stderr)


def _print_records(batches: Iterator[list[Message]], form: Form, max_records: int | None, output: BinaryIO) -> None:
    left = max_records
    for messages in batches:
        output.writelines(map(form, messages[:left]))
        output.flush()
        if left is not None:
            left -= len(messages[:left])
            if left == 0:
                return


def _columns(text: str) -> list[str]:
    columns = [each.strip() for each in text.split(",") if each.strip()]
    for column in columns:
        if column not in COLUMNS:
            raise CommandError(f"--with {column}: expected some of {','.join(COLUMNS)}")
    return columns
