"""`flowstone replay`: writes a range of a topic's records to another topic.

Records keep their partition, order, keys, headers and timestamps. They are sent as whole batches (`replay_batches`) by
the client that Spark and Arrow use, without decoding. With --speed they are sent at the intervals of their timestamps,
all partitions in parallel; without it partition by partition, as fast as possible.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import closing
from heapq import merge
from operator import attrgetter
from typing import Annotated

import typer
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from flowstone.cli.common.clients import DEFAULT_BOOTSTRAP, REQUEST_TIMEOUT_S, Bootstrap, connect, find_topic, result_of
from flowstone.cli.common.errors import EXIT_INTERRUPTED, CommandError
from flowstone.cli.common.interrupts import Interrupts
from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.cli.common.progress import Advance, progress_bar
from flowstone.cli.common.text import counted
from flowstone.cli.common.times import TIME_HELP, parse_time
from flowstone.cli.records.replay_batches import Reader, Sendable
from flowstone.cli.records.replay_progress import ReplayProgress, Span
from flowstone.client import EARLIEST, LATEST, Cluster, Producer
from flowstone.types import TopicPartition

SAVE_EVERY_S = 1.0
# Records that are due within this time of each other are sent together.
PACE_GRAIN_S = 0.02
WAIT_STEP_S = 0.2
SPEED_MAX = 1_000_000.0
BEGINNING, END = "beginning", "end"


def register(app: typer.Typer) -> None:
    app.command("replay")(replay)


def replay(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The topic to read from.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The topic to write to.")],
    from_time: Annotated[
        str,
        typer.Option("--from", metavar="TIME", help=f"Start at the first record at or after this time: {TIME_HELP}."),
    ] = BEGINNING,
    to_time: Annotated[
        str, typer.Option("--to", metavar="TIME", help="Stop before the first record at or after this time.")
    ] = END,
    speed: Annotated[
        str | None, typer.Option(metavar="Nx", help="Follow the intervals of the timestamps, N times as fast: 1x, 10x.")
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Start from the beginning even if an interrupted replay could continue.")
    ] = False,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Write a range of a topic's records to another topic, with the same keys, headers and timestamps.

    After an interruption, run the same command again to continue.
    """
    factor = _read_speed(speed) if speed is not None else None
    bounds = [
        parse_time(f"--{name}", text) if text != none else None
        for name, text, none in (("from", from_time, BEGINNING), ("to", to_time, END))
    ]
    admin = connect(bootstrap)
    _check_topics(admin, bootstrap, source, target)
    progress = ReplayProgress(admin, bootstrap, source, target, {"from": from_time, "to": to_time})
    if restart:
        progress.forget()
    with Cluster(bootstrap, client_id="flowstone-replay") as cluster, Interrupts() as interrupts:
        topic = cluster.describe_topics([source])[source]  # before the offsets, which are then of this topic
        spans = progress.load()
        is_resumed = bool(spans)
        spans = spans or _settle(cluster, source, topic.partition_count, *bounds)
        reader = Reader(cluster, topic.topic_id, PACE_GRAIN_S * 1000 * factor if factor is not None else None)
        work = Replay(cluster, reader, progress, source, target, spans, factor)
        work.run(interrupts)
    if json_output:
        told = {"source": source, "target": target, "stored": work.stored, "resumed": is_resumed}
        print_document({**told, "interrupted": interrupts.heard})
    else:
        again = " (continued after an interruption)" if is_resumed else ""
        rest = "; interrupted, the same command continues" if interrupts.heard else ""
        print(f"replayed {counted(work.stored, 'record')} of {source} to {target}{again}{rest}")
    if interrupts.heard:
        raise typer.Exit(EXIT_INTERRUPTED)


class Replay:
    def __init__(
        self,
        cluster: Cluster,
        reader: Reader,
        progress: ReplayProgress,
        source: str,
        target: str,
        spans: dict[int, Span],
        speed: float | None,
    ) -> None:
        self.stored = 0
        self._cluster, self._reader, self._progress = cluster, reader, progress
        self._source, self._target = source, target
        self._spans, self._speed = spans, speed
        self._unsaved: dict[int, Span] = {}
        self._sent = 0
        self._began: tuple[float, int] | None = None  # when the first record was sent, and its timestamp

    def run(self, interrupts: Interrupts) -> None:
        """Send until all records are stored or an interrupt arrives; then store progress.

        Raises ClientError if it fails.
        """
        total = sum(span.end - span.start for span in self._spans.values())
        with progress_bar(f"{self._source} to {self._target}", total) as advance, Producer(self._cluster) as producer:
            advance(self._done())
            saved_s = time.monotonic()
            with closing(self._batches()) as batches:
                for each in interrupts.read(batches):
                    self._wait_until_due(each.timestamp_ms, producer, interrupts)
                    if interrupts.heard:
                        break
                    producer.send(TopicPartition(self._target, each.partition), each.batch, each.record_count)
                    self._sent += each.record_count
                    self._unsaved[each.partition] = self._spans[each.partition]._replace(position=each.next_offset)
                    if time.monotonic() - saved_s >= SAVE_EVERY_S:
                        self._save(producer, advance)
                        saved_s = time.monotonic()
            self._save(producer, advance)
        if not interrupts.heard:
            self._progress.forget()

    def _save(self, producer: Producer, advance: Advance) -> None:
        """Wait until all sent records are stored, and commit the progress."""
        producer.flush()
        self.stored = self._sent
        self._spans.update(self._unsaved)
        self._progress.save(self._unsaved)
        self._unsaved = {}
        advance(self._done())

    def _done(self) -> int:
        return sum(span.position - span.start for span in self._spans.values())

    def _batches(self) -> Generator[Sendable, None, None]:
        parts = [
            self._reader.read(TopicPartition(self._source, partition), span.position, span.end)
            for partition, span in sorted(self._spans.items())
            if span.position < span.end
        ]
        if self._speed is not None:
            yield from merge(*parts, key=attrgetter("timestamp_ms"))
            return
        for part in parts:
            yield from part

    def _wait_until_due(self, timestamp_ms: int, producer: Producer, interrupts: Interrupts) -> None:
        """With a speed, wait until records of this timestamp are due, or until an interrupt."""
        if self._speed is None:
            return
        if self._began is None:
            self._began = time.monotonic(), timestamp_ms
        begun_s, first_ms = self._began
        due_s = begun_s + (timestamp_ms - first_ms) / 1000 / self._speed
        if due_s - time.monotonic() > PACE_GRAIN_S:
            producer.flush()  # send records that are already due before waiting
        while not interrupts.heard and (left_s := due_s - time.monotonic()) > 0:
            time.sleep(min(left_s, WAIT_STEP_S))


def _settle(cluster: Cluster, source: str, count: int, from_ms: int | None, to_ms: int | None) -> dict[int, Span]:
    """Return the offsets that the times currently stand for in the topic's partitions."""
    parts = [TopicPartition(source, index) for index in range(count)]
    latest = cluster.list_offsets(dict.fromkeys(parts, LATEST), read_committed=True)
    starts = cluster.list_offsets(dict.fromkeys(parts, EARLIEST if from_ms is None else from_ms))
    ends = latest if to_ms is None else cluster.list_offsets(dict.fromkeys(parts, to_ms))
    spans = {}
    for part in parts:
        limit = latest[part].offset
        start, end = (min(found.offset, limit) if found.offset >= 0 else limit for found in (starts[part], ends[part]))
        spans[part.partition] = Span(start, start, max(start, end))
    return spans


def _read_speed(text: str) -> float:
    try:
        speed = float(text.lower().removesuffix("x"))
        if 0 < speed <= SPEED_MAX:
            return speed
    except ValueError:
        pass
    raise CommandError(f"--speed {text}: expected 1x, 10x or 0.5x")


def _check_topics(admin: AdminClient, bootstrap: str, source: str, target: str) -> None:
    if source == target:
        raise CommandError("a topic is not replayed to itself: name another one as TARGET")
    counts = [len(find_topic(admin, bootstrap, name).partitions) for name in (source, target)]
    if counts[0] > counts[1]:
        raise CommandError(
            f"records keep their partitions, and {target} has {counts[1]} of the {counts[0]} that {source} has: "
            f"make one with `flowstone topic create {target} --partitions {counts[0]}`"
        )
    resource = ConfigResource(ConfigResource.Type.TOPIC, target)
    settings = result_of(admin.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)[resource], bootstrap)
    if settings["message.timestamp.type"].value != "CreateTime":
        raise CommandError(
            f"{target} gives records the time of their arrival, and timestamps would be lost: "
            f"change it with `flowstone topic alter {target} --set message.timestamp.type=CreateTime`"
        )
