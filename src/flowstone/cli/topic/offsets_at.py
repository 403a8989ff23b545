"""`flowstone topic offsets`: prints the offset of each partition at a point in time."""

from __future__ import annotations

from typing import Annotated

import typer
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from flowstone.cli.common.clients import (
    DEFAULT_BOOTSTRAP,
    REQUEST_TIMEOUT_S,
    Bootstrap,
    TopicName,
    connect,
    find_topic,
    result_of,
)
from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.cli.common.text import screen_width, table
from flowstone.cli.common.times import TIME_HELP, format_time, parse_time


def offsets(
    topic: TopicName,
    at: Annotated[str, typer.Option(metavar="TIME", help=f"The point in time: {TIME_HELP}.")] = "now",
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show the offset of each partition's first record at or after a point in time, or its end if there is none."""
    time_ms = parse_time("--at", at)
    admin = connect(bootstrap)
    numbers = sorted(find_topic(admin, bootstrap, topic).partitions)
    found = _list_offsets(admin, bootstrap, topic, numbers, OffsetSpec.for_timestamp(time_ms))
    ends = _list_offsets(admin, bootstrap, topic, numbers, OffsetSpec.latest())  # type: ignore[no-untyped-call]
    partitions = []
    for number in numbers:
        (offset, timestamp_ms), (end, _) = found[number], ends[number]
        is_there = offset >= 0
        partitions.append(
            {
                "partition": number,
                "offset": offset if is_there else end,
                "timestamp_ms": timestamp_ms if is_there else None,
                "next_offset": end,
            }
        )
    if json_output:
        print_document({"topic": topic, "time_ms": time_ms, "partitions": partitions})
        return
    print(f"topic {topic} at {format_time(time_ms)}")
    rows = [
        [
            str(each["partition"]),
            str(each["offset"]),
            format_time(each["timestamp_ms"]) if each["timestamp_ms"] is not None else "-",
            str(each["next_offset"]),
        ]
        for each in partitions
    ]
    print(table(["partition", "offset", "its time", "next offset"], rows, screen_width()))


def _list_offsets(
    admin: AdminClient, bootstrap: str, topic: str, partitions: list[int], spec: OffsetSpec
) -> dict[int, tuple[int, int]]:
    """Return offset and timestamp by partition, -1 if there is no such record."""
    asked = {TopicPartition(topic, number): spec for number in partitions}
    answers = admin.list_offsets(asked, request_timeout=REQUEST_TIMEOUT_S)
    results = {each.partition: result_of(future, bootstrap) for each, future in answers.items()}
    return {number: (result.offset, result.timestamp) for number, result in results.items()}
