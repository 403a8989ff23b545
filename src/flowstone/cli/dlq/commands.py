"""`flowstone dlq`: lists, shows, retries and drops the dead letters of share groups."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import typer
from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]

from flowstone.cli.common.clients import (
    DEFAULT_BOOTSTRAP,
    REQUEST_TIMEOUT_S,
    Bootstrap,
    connect,
    fetch_metadata,
    result_of,
)
from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.json_output import JsonOutput, Yes, confirm, print_document
from flowstone.cli.common.text import counted, screen_width, table
from flowstone.cli.common.times import format_time
from flowstone.cli.dlq.letters import Letter
from flowstone.cli.dlq.queue import DeadLetterQueue
from flowstone.cli.dlq.settled import Settled
from flowstone.cli.dlq.settling import Settling, Wanted

ALLOWED = "errors.deadletterqueue.group.enable"
NOTHING = "-"
SHOWN_DEFAULT, SHOWN_MAX = 50, 1_000_000

Place = Annotated[
    str,
    typer.Argument(metavar="TOPIC[/PARTITION[@OFFSET]]", help="All letters of a topic, those of a partition, or one."),
]
OfGroup = Annotated[str | None, typer.Option("--group", metavar="G", help="Only letters of this share group.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Show, retry and drop dead letters of share groups.", rich_markup_mode=None)
    group.command("list")(list_letters)
    group.command("show")(show)
    group.command("retry")(retry)
    group.command("drop")(drop)
    app.add_typer(group, name="dlq", no_args_is_help=True)


def list_letters(
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="A dead letter queue; default: all topics that may be one.")
    ] = None,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Count the open dead letters of each queue by share group and by the topic that they come from."""
    counts: dict[tuple[str, str | None, str | None], int] = {}
    for name in [topic] if topic is not None else _queues(bootstrap):
        with DeadLetterQueue(bootstrap, name) as queue:
            for letter, _is_open in _letters(queue, None, with_settled=False):
                row = (queue.topic, letter.group, letter.origin[0].topic if letter.origin is not None else None)
                counts[row] = counts.get(row, 0) + 1
    rows = [[each or NOTHING for each in row] + [str(count)] for row, count in counts.items()]
    if json_output:
        for (queue_name, group, source), count in counts.items():
            print_document({"topic": queue_name, "group": group, "source": source, "open": count})
    elif rows:
        print(table(["dead letter queue", "group", "source", "open"], sorted(rows), screen_width()))


def show(
    place: Place,
    group: OfGroup = None,
    with_settled: Annotated[bool, typer.Option("--all", help="Also those that were retried or dropped.")] = False,
    limit: Annotated[
        int, typer.Option("--max", metavar="N", min=1, max=SHOWN_MAX, help="At most N letters.")
    ] = SHOWN_DEFAULT,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show open dead letters: where each comes from, its group, deliveries and cause, and its record."""
    shown = 0
    with DeadLetterQueue(bootstrap, place) as queue:
        one_wanted = queue.offset is not None
        found = _letters(queue, group, with_settled=with_settled or one_wanted)
        for letter, is_open in islice(found, limit):
            if json_output:
                print_document(letter.document(is_open=is_open))
            else:
                print("\n".join([*([""] if shown else []), *_lines(letter, is_open)]))
            shown += 1
        if one_wanted and not shown:
            raise CommandError(_absent(place, group))
        if not json_output and next(found, None) is not None:
            print(f"\nonly the first {counted(shown, 'letter')}: see more with --max")


def retry(
    place: Place,
    group: OfGroup = None,
    even_old: Annotated[
        bool,
        typer.Option(
            "--even-old", help="Also retry letters that are so old that brokers may no longer know of earlier retries."
        ),
    ] = False,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Write the records of open dead letters back to the partitions that they come from, each once.

    Headers of the new record contain its history. If a letter has only headers, its record is read from the source
    topic.
    """
    with DeadLetterQueue(bootstrap, place) as queue:
        done = _settled(queue, group, place, is_retry=True, even_old=even_old)
    if json_output:
        print_document(
            {
                "retried": done.settled_count,
                "open": done.problem_count,
                "problems": [e._asdict() for e in done.problems],
            }
        )
    else:
        for problem in done.problems:
            print(f"{problem.letter} stays open: {problem.reason}")
        print(f"retried {counted(done.settled_count, 'letter')}")
    if done.problem_count:
        stay = "stays" if done.problem_count == 1 else "stay"
        raise CommandError(
            f"{counted(done.problem_count, 'letter')} cannot be retried and {stay} open: {done.problems[0].reason}; "
            f"see `flowstone dlq show`, or `flowstone dlq drop`"
        )


def drop(
    place: Place,
    group: OfGroup = None,
    yes: Yes = False,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Mark open dead letters as settled without a retry. Their records stay until retention deletes them."""
    with DeadLetterQueue(bootstrap, place) as queue:
        if not yes:
            count = sum(is_open for _letter, is_open in _letters(queue, group, with_settled=False))
            confirm(f"{counted(count, 'letter')} of {place} will be dropped, and not be retried any more")
        done = _settled(queue, group, place, is_retry=False, even_old=True)
    if json_output:
        print_document({"dropped": done.settled_count})
    else:
        print(f"dropped {counted(done.settled_count, 'letter')}")


def _settled(queue: DeadLetterQueue, group: str | None, place: str, *, is_retry: bool, even_old: bool) -> Settling:
    with Settling(queue, is_retry=is_retry, even_old=even_old) as settling:
        settling.settle(_wanted(queue, group))
    if queue.offset is not None and not settling.settled_count and not settling.problem_count:
        raise CommandError(_absent(place, group, "open "))
    return settling


def _wanted(queue: DeadLetterQueue, group: str | None) -> Wanted:
    return lambda letter: (queue.offset is None or letter.offset == queue.offset) and group in (None, letter.group)


def _letters(queue: DeadLetterQueue, group: str | None, *, with_settled: bool) -> Iterator[tuple[Letter, bool]]:
    """Yield the letters, and whether each is open."""
    wanted = _wanted(queue, group)
    for partition in queue.partitions:
        settled = queue.settled(partition) or Settled(0)
        start = settled.next_offset if not with_settled else 0
        for letter in queue.read(partition, start if queue.offset is None else max(start, queue.offset)):
            is_open = letter.offset not in settled
            if wanted(letter) and (is_open or with_settled):
                yield letter, is_open


def _queues(bootstrap: str) -> list[str]:
    """Return the topics that groups may use as dead letter queues."""
    admin = connect(bootstrap)
    names = sorted(name for name in fetch_metadata(admin, bootstrap).topics if not name.startswith("__"))
    resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
    if not resources:
        return []
    answers = admin.describe_configs(resources, request_timeout=REQUEST_TIMEOUT_S)
    found = []
    for resource, answer in answers.items():
        setting = result_of(answer, bootstrap).get(ALLOWED)
        if setting is not None and setting.value == "true":
            found.append(resource.name)
    return sorted(found)


def _absent(place: str, group: str | None, kind: str = "") -> str:
    of_group = f" of group {group}" if group is not None else ""
    return f"there is no {kind}letter {place}{of_group}: see `flowstone dlq show {place.partition('@')[0]} --all`"


def _lines(letter: Letter, is_open: bool) -> list[str]:
    told = letter.document(is_open=is_open)
    lines = [
        f"letter {letter.place}{'' if is_open else ' (retried or dropped)'}",
        f"  time        {format_time(letter.timestamp_ms)}",
        f"  origin      {told['origin'] or NOTHING}",
        f"  group       {told['group'] or NOTHING}",
        f"  deliveries  {NOTHING if letter.deliveries is None else letter.deliveries}",
        f"  cause       {told['cause'] or NOTHING}",
    ]
    if not letter.has_content:
        return [*lines, "  record      not copied: only headers were kept"]
    lines += [f"  header      {name}={NOTHING if value is None else value}" for name, value in told["headers"]]
    key, value = told["key"], told["value"]
    return [
        *lines,
        f"  key         {NOTHING if key is None else key}",
        f"  value       {NOTHING if value is None else value}",
    ]
