"""`flowstone generate`: writes realistic test events, which `event_streams` defines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated

import typer

from flowstone.cli.common.clients import DEFAULT_BOOTSTRAP, Bootstrap
from flowstone.cli.common.errors import EXIT_INTERRUPTED, CommandError
from flowstone.cli.common.interrupts import Interrupts
from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.cli.common.numbers import PER_SECOND_MAX, ROWS_MAX, finite
from flowstone.cli.common.progress import progress_bar
from flowstone.cli.common.text import counted
from flowstone.cli.common.times import parse_time
from flowstone.cli.records.event_streams import KINDS, Event, generate
from flowstone.cli.records.sending import OutgoingRecord, Sender

ROWS = 10_000
# Without a rate, all records are written at once, with times within this period before now.
SPAN_S = 3600.0
DELIVERY_TIMEOUT_S = 30.0
START_MS_MAX = 253_370_764_800_000  # the year 9999 begins
SHOW_EVERY_RECORDS = 1000


def register(app: typer.Typer) -> None:
    app.command("generate")(generate_events)


def generate_events(
    kind: Annotated[str, typer.Argument(metavar="KIND", help=f"One of {', '.join(KINDS)}.")],
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="The target topic; default: the topic with the kind's name.")
    ] = None,
    rows: Annotated[int, typer.Option(metavar="N", min=1, max=ROWS_MAX, help="Number of records.")] = ROWS,
    rate: Annotated[
        float | None,
        typer.Option(
            metavar="R",
            min=0.001,
            max=PER_SECOND_MAX,
            callback=finite,
            help="Records per second, sent live; default: all at once.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed generates the same events.")] = 0,
    start: Annotated[
        str | None, typer.Option(metavar="TIME", help="The time of the first record if all are sent at once.")
    ] = None,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Write realistic test events, as JSON with keys, to a topic: orders, clicks or device readings.

    By default all events are written at once, with times within the last hour or from --start on; with --rate they are
    written live. Some events are late: their event_time is minutes before the record's timestamp.
    """
    if kind not in KINDS:
        raise CommandError(f"there are no {kind}: choose one of {', '.join(KINDS)}")
    if rate is not None and start is not None:
        raise CommandError("--start is for records sent all at once: with --rate they are sent as they happen")
    sender = Sender(bootstrap, topic or kind, "all", DELIVERY_TIMEOUT_S)
    with Interrupts() as interrupts:
        _send_all(interrupts.read(_events(kind, rows, rate, seed, start)), rows, sender)
    if json_output:
        print_document({"topic": topic or kind, "stored": sender.stored, "interrupted": interrupts.heard})
    else:
        print(f"stored {counted(sender.stored, 'record')}")
    if interrupts.heard:
        raise typer.Exit(EXIT_INTERRUPTED)


def _events(kind: str, rows: int, rate: float | None, seed: int, start: str | None) -> Iterator[Event]:
    now_ms = int(time.time() * 1000)
    if rate is None:
        start_ms = parse_time("--start", start) if start is not None else now_ms - int(SPAN_S * 1000)
        if start_ms > START_MS_MAX:
            raise CommandError(f"--start {start}: events have their time as text, which ends with the year 9999")
        return generate(kind, rows, start_ms=start_ms, per_second=rows / SPAN_S, seed=seed)
    return _live(generate(kind, rows, start_ms=now_ms, per_second=rate, seed=seed))


def _live(events: Iterator[Event]) -> Iterator[Event]:
    """Yield each event when its time has come."""
    for event in events:
        wait_s = event.timestamp_ms / 1000 - time.time()
        if wait_s > 0:
            time.sleep(wait_s)
        yield event


def _send_all(events: Iterator[Event], rows: int, sender: Sender) -> None:
    with progress_bar(f"{rows} records", rows) as advance:
        for number, event in enumerate(events):
            if not sender.send(OutgoingRecord(event.value, event.key, timestamp_ms=event.timestamp_ms)):
                break
            if number % SHOW_EVERY_RECORDS == 0:
                advance(number)
        sender.finish()
