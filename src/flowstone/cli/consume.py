"""`flowstone consume`: a topic's records on standard output, from any place in the past.

Partitions are read directly, without a group, and nothing is committed. Unless told to follow, it reads up to where
each partition ended when it began, so that it ends even while others write.
"""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Annotated, BinaryIO

import typer
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from flowstone.cli.clients import (
    DEFAULT_BOOTSTRAP,
    REQUEST_TIMEOUT_S,
    Bootstrap,
    client_config,
    connect,
    explain,
    find_topic,
)
from flowstone.cli.errors import CommandError

RECORDS_PER_CALL = 1000
POLL_S = 0.5
SILENCE_MAX_S = 30.0
COLUMNS = ("key", "offset", "partition", "timestamp", "headers")


def register(app: typer.Typer) -> None:
    app.command("consume")(consume)


def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic to read.")],
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="From the oldest record on: the default unless --follow is given.")
    ] = False,
    offset: Annotated[int | None, typer.Option(min=0, help="From this offset on.")] = None,
    timestamp: Annotated[
        str | None, typer.Option(metavar="TIME", help="From this time on: milliseconds since 1970, or ISO 8601.")
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.")] = None,
    max_records: Annotated[int | None, typer.Option("--max", metavar="N", min=1, help="At most N records.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait for new records at the end instead of stopping there.")
    ] = False,
    with_columns: Annotated[
        str, typer.Option("--with", metavar="COLUMNS", help=f"Print before each value, with tabs: {','.join(COLUMNS)}.")
    ] = "",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Print a topic's values, one per line."""
    if sum((from_beginning, offset is not None, timestamp is not None)) > 1:
        raise CommandError("--from-beginning, --offset and --timestamp exclude each other: give one of them")
    columns = [each.strip() for each in with_columns.split(",") if each.strip()]
    for column in columns:
        if column not in COLUMNS:
            raise CommandError(f"--with {column}: expected some of {','.join(COLUMNS)}")
    start_ms = _milliseconds(timestamp) if timestamp is not None else None
    reader = _Reader(bootstrap, topic, partition)
    try:
        if start_ms is not None:
            reader.seek_time(start_ms)
        elif offset is not None:
            reader.seek_offset(offset)
        elif follow and not from_beginning:
            reader.seek_end()
        reader.print_records(columns, max_records, follow, sys.stdout.buffer)
    finally:
        reader.close()


def _milliseconds(text: str) -> int:
    if text.isdecimal():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise CommandError(
            f"--timestamp {text}: expected milliseconds since 1970 or a time such as 2026-01-31T12:00:00+00:00"
        ) from None


class _Reader:
    """One pass over a topic's partitions, from chosen offsets to where they end now."""

    def __init__(self, bootstrap: str, topic: str, partition: int | None) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        known = sorted(find_topic(connect(bootstrap), bootstrap, topic).partitions)
        if partition is not None and partition not in known:
            raise CommandError(f"{topic} has no partition {partition}: its partitions are 0 to {known[-1]}")
        # The library wants a group's name even where no group is used.
        config = client_config(
            bootstrap,
            group_id="flowstone-cli",
            enable_auto_commit=False,
            auto_offset_reset="error",
            enable_partition_eof=True,
        )
        self._consumer: Consumer = Consumer(config)
        try:
            self._bounds = {
                each: self._consumer.get_watermark_offsets(TopicPartition(topic, each), timeout=REQUEST_TIMEOUT_S)
                for each in (known if partition is None else [partition])
            }
        except KafkaException as error:
            self._consumer.close()
            raise explain(error, bootstrap) from None
        self._starts = {each: first for each, (first, _end) in self._bounds.items()}

    def close(self) -> None:
        self._consumer.close()

    def seek_end(self) -> None:
        self._starts = {each: end for each, (_first, end) in self._bounds.items()}

    def seek_offset(self, offset: int) -> None:
        for each, (first, end) in self._bounds.items():
            if not first <= offset <= end:
                raise CommandError(
                    f"partition {each} of {self._topic} has offsets {first} to {end}, not {offset}: "
                    "choose one of those, or one partition with --partition"
                )
            self._starts[each] = offset

    def seek_time(self, time_ms: int) -> None:
        asked = [TopicPartition(self._topic, each, time_ms) for each in self._bounds]
        try:
            found = self._consumer.offsets_for_times(asked, timeout=REQUEST_TIMEOUT_S)
        except KafkaException as error:
            raise explain(error, self._bootstrap) from None
        for each in found:
            # Negative: no record is that new.
            self._starts[each.partition] = each.offset if each.offset >= 0 else self._bounds[each.partition][1]

    def print_records(self, columns: list[str], max_records: int | None, follow: bool, output: BinaryIO) -> None:
        open_partitions = {each for each, start in self._starts.items() if follow or start < self._bounds[each][1]}
        left = max_records
        self._consumer.assign([TopicPartition(self._topic, each, self._starts[each]) for each in open_partitions])
        while open_partitions and left != 0:
            for message in self._next_messages(follow):
                if self._is_beyond(message, open_partitions, follow) or left == 0:
                    continue
                output.write(_line(message, columns))
                left = left - 1 if left is not None else None
            output.flush()

    def _next_messages(self, follow: bool) -> list[Message]:
        """One message as soon as there is one, and what has come with it."""
        waited_s = 0.0
        # In short waits: an interrupt is heard only between them.
        while (first := self._consumer.poll(POLL_S)) is None:
            waited_s += POLL_S
            if waited_s >= SILENCE_MAX_S and not follow:
                reason = f"no records from {self._bootstrap} for {SILENCE_MAX_S:.0f} s"
                raise CommandError(f"{reason}: see what the broker logs")
        return [first, *self._consumer.consume(RECORDS_PER_CALL, 0)]

    def _is_beyond(self, message: Message, open_partitions: set[int], follow: bool) -> bool:
        """Whether the message is not to be printed; closes partitions that have been read to their end."""
        error, partition, offset = message.error(), message.partition(), message.offset()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise explain(error, self._bootstrap)
        if follow:
            return error is not None
        assert partition is not None
        assert offset is not None
        end = self._bounds[partition][1]
        if offset >= end - 1:
            open_partitions.discard(partition)
        return error is not None or offset >= end


def _line(message: Message, columns: list[str]) -> bytes:
    cells = [_cell(message, column) for column in columns]
    return b"\t".join([*cells, _bytes(message.value())]) + b"\n"


def _cell(message: Message, column: str) -> bytes:
    match column:
        case "key":
            return _bytes(message.key())
        case "offset":
            return _bytes(str(message.offset()))
        case "partition":
            return _bytes(str(message.partition()))
        case "timestamp":
            return _bytes(str(message.timestamp()[1]))
        case _:
            headers = message.headers() or []
            assert isinstance(headers, list)  # as read, whatever form they were sent in
            return b",".join(name.encode() + b"=" + _bytes(value) for name, value in headers)


def _bytes(text: str | bytes | None) -> bytes:
    if text is None:
        return b"null"
    return text.encode() if isinstance(text, str) else text
