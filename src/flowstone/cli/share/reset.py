"""`flowstone share reset`: sets where a share group without members goes on, after showing the plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from flowstone.cli.common.clients import DEFAULT_BOOTSTRAP, Bootstrap
from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.json_output import JsonOutput, Yes, confirm, print_document
from flowstone.cli.common.numbers import OFFSET_MAX
from flowstone.cli.common.text import counted, screen_width, table
from flowstone.cli.common.times import parse_time
from flowstone.cli.share.link import GroupName, ShareLink
from flowstone.client.offsets import EARLIEST, LATEST
from flowstone.client.share_groups import ShareOffset
from flowstone.types import TopicPartition


def reset(
    group: GroupName,
    topic: Annotated[list[str] | None, typer.Option(metavar="T", help="A topic; repeatable.")] = None,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the oldest record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end: skip all existing records.")] = False,
    to_timestamp: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="To the first record at or after a time: milliseconds since 1970, or ISO 8601."
        ),
    ] = None,
    to_offset: Annotated[int | None, typer.Option(metavar="N", min=0, max=OFFSET_MAX, help="To this offset.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")] = False,
    yes: Yes = False,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Set the offsets from which a share group continues in a topic. The group must have no members.

    All records from there on are delivered again, even those that the group has accepted. A group that does not exist
    is created.
    """
    if sum((to_earliest, to_latest, to_timestamp is not None, to_offset is not None)) != 1:
        raise CommandError("give one of --to-earliest, --to-latest, --to-timestamp and --to-offset")
    if not topic:
        raise CommandError("say what to reset: --topic T")
    timestamp_ms = parse_time("--to-timestamp", to_timestamp) if to_timestamp is not None else None
    with ShareLink(bootstrap) as link:
        partitions = [place for name in dict.fromkeys(topic) for place in link.partitions(name)]
        before = link.offsets(group)
        first, last = link.offsets_at(partitions, EARLIEST), link.offsets_at(partitions, LATEST)
        wanted = first if to_earliest else last
        if timestamp_ms is not None:
            found = link.offsets_at(partitions, timestamp_ms)
            wanted = {place: offset if offset >= 0 else last[place] for place, offset in found.items()}
        elif to_offset is not None:
            wanted = {place: min(max(to_offset, first[place]), last[place]) for place in partitions}
        if not json_output:
            rows = [
                [place.topic, str(place.partition), _start(before, place), str(wanted[place])] for place in partitions
            ]
            print(table(["topic", "partition", "start offset", "new start offset"], rows, screen_width()))
        if not dry_run:
            if not yes:
                confirm(f"share group {group} goes on elsewhere in {counted(len(partitions), 'partition')}")
            link.reset(group, wanted)
    if json_output:
        for place in partitions:
            print_document({"topic": place.topic, "partition": place.partition, "start_offset": wanted[place]})


def _start(before: Mapping[TopicPartition, ShareOffset], place: TopicPartition) -> str:
    offset = before[place].start_offset if place in before else -1
    return str(offset) if offset >= 0 else "-"
