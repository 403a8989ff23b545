"""`flowstone group reset`: sets the offsets of a group without members, after showing the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient

from flowstone.cli.common.clients import (
    DEFAULT_BOOTSTRAP,
    REQUEST_TIMEOUT_S,
    Bootstrap,
    connect,
    explain,
    find_topic,
    result_of,
)
from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.json_output import JsonOutput, Yes, confirm, print_document
from flowstone.cli.common.numbers import OFFSET_MAX, PARTITION_DIGITS_MAX
from flowstone.cli.common.text import counted, screen_width, table
from flowstone.cli.common.times import parse_time
from flowstone.cli.group.reading import GroupName, GroupReader
from flowstone.cli.group.tables import number
from flowstone.cli.group.targets import Move, Target, plan_moves, read_file, within_bounds
from flowstone.types import TopicPartition

_TARGETS = "--to-earliest, --to-latest, --to-timestamp, --shift-by, --to-offset or --from-file"


def reset(
    group: GroupName,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the oldest record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end: skip all existing records.")] = False,
    to_timestamp: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="To the first record at or after a time: milliseconds since 1970, or ISO 8601."
        ),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=-OFFSET_MAX,
            max=OFFSET_MAX,
            help="By N records from the committed offsets, backwards if negative.",
        ),
    ] = None,
    to_offset: Annotated[int | None, typer.Option(metavar="N", min=0, max=OFFSET_MAX, help="To this offset.")] = None,
    from_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="To the offsets in a CSV file: topic,partition,offset.")
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option(metavar="T[:P,P]", help="A topic, or some partitions; repeatable.")
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Every topic in which the group has committed offsets.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")] = False,
    yes: Yes = False,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Set the offsets from which a group continues. The group must have no members."""
    timestamp_ms = parse_time("--to-timestamp", to_timestamp) if to_timestamp is not None else None
    target = Target(to_earliest, to_latest, timestamp_ms, shift_by, to_offset)
    if target.count + (from_file is not None) != 1:
        raise CommandError(f"give one of {_TARGETS}")
    if sum((bool(topic), all_topics, from_file is not None)) != 1:
        raise CommandError("say what to reset: --topic T, --topic T:0,1 or --all-topics; a file says so itself")

    admin = connect(bootstrap)
    reader = GroupReader(admin, bootstrap)
    committed = _committed(reader, group)
    if from_file is not None:
        wanted = read_file(from_file, group)
        _check_there(admin, bootstrap, list(wanted))
        moves = within_bounds(wanted, reader.bounds(wanted), committed)
    else:
        moves = plan_moves(reader, _scope(admin, bootstrap, topic or [], group, committed), target, committed)

    if not json_output:
        print(_table(moves))
    if not (dry_run or yes):
        confirm(f"group {group} will continue from the new offsets")
    if not dry_run:
        _apply(admin, bootstrap, group, moves)
    if json_output:
        print_document({"group": group, "dry_run": dry_run, "partitions": [asdict(move) for move in moves]})
    elif not dry_run:
        print(f"reset {counted(len(moves), 'partition')} of group {group}")


def _committed(reader: GroupReader, group_id: str) -> dict[TopicPartition, int]:
    """Return the group's committed offsets, empty if it does not exist. Raises CommandError if it has members."""
    group = reader.find(group_id)
    if group is None:
        return {}
    if group.members:
        raise CommandError(
            f"group {group_id} has {counted(len(group.members), 'member')}: stop them first, "
            "offsets can be reset only while nobody reads"
        )
    return {
        TopicPartition(each.topic, each.partition): each.committed_offset
        for each in group.partitions
        if each.committed_offset is not None
    }


def _scope(
    admin: AdminClient, bootstrap: str, topics: Sequence[str], group_id: str, committed: Mapping[TopicPartition, int]
) -> list[TopicPartition]:
    partitions: set[TopicPartition] = set()
    for text in topics:
        name, colon, numbers = text.partition(":")
        if colon:
            partitions.update(TopicPartition(name, each) for each in _numbers(text, numbers))
        else:
            partitions.update(_all_partitions(admin, bootstrap, name))
    if not topics:
        if not committed:
            raise CommandError(f"group {group_id} has committed nothing yet: name topics with --topic")
        for name in {each.topic for each in committed}:
            partitions.update(_all_partitions(admin, bootstrap, name))
    found = sorted(partitions)
    _check_there(admin, bootstrap, found)
    return found


def _all_partitions(admin: AdminClient, bootstrap: str, topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, each) for each in find_topic(admin, bootstrap, topic).partitions]


def _numbers(text: str, numbers: str) -> list[int]:
    parts = numbers.split(",")
    if not all(part.isascii() and part.isdecimal() and len(part) <= PARTITION_DIGITS_MAX for part in parts):
        raise CommandError(f"--topic {text}: expected --topic T:0,1 with the numbers of partitions")
    return [int(part) for part in parts]


def _check_there(admin: AdminClient, bootstrap: str, partitions: Sequence[TopicPartition]) -> None:
    known = {name: set(_all_partitions(admin, bootstrap, name)) for name in {each.topic for each in partitions}}
    for each in partitions:
        if each not in known[each.topic]:
            count = counted(len(known[each.topic]), "partition")
            raise CommandError(f"topic {each.topic} has {count}, and no partition {each.partition}")


def _table(moves: Sequence[Move]) -> str:
    rows = [[each.topic, str(each.partition), number(each.committed_offset), str(each.new_offset)] for each in moves]
    return table(["topic", "partition", "committed", "new offset"], rows, screen_width())


def _apply(admin: AdminClient, bootstrap: str, group_id: str, moves: Sequence[Move]) -> None:
    offsets = [ClientPartition(each.topic, each.partition, each.new_offset) for each in moves]
    request = ConsumerGroupTopicPartitions(group_id, offsets)
    future = admin.alter_consumer_group_offsets([request], request_timeout=REQUEST_TIMEOUT_S)[group_id]
    for each in result_of(future, bootstrap).topic_partitions:
        if each.error is not None:
            raise explain(each.error, bootstrap)
