"""`flowstone log`: look into a data directory's files, verify them, and repair a damaged partition."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated

import typer

from flowstone.cli.errors import EXIT_FAILURE, CommandError
from flowstone.cli.repair import repair_segment
from flowstone.cli.survey import Damage, open_for_reading, segment_paths, walk
from flowstone.cli.text import counted
from flowstone.cli.verification import DataDirectory, PartitionReport
from flowstone.log.log_directory import LOCK_FILE
from flowstone.log.scanning import ScannedBatch
from flowstone.log.segment import LOG_SUFFIX
from flowstone.ports.files import File, SystemFiles
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import NO_PRODUCER_ID, CorruptBatch, decode_records

DirectoryArgument = Annotated[str, typer.Argument(metavar="DATA_DIR", help="The broker's data directory.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Look into, verify and repair log files.", no_args_is_help=True, rich_markup_mode=None)
    group.command("dump")(dump)
    group.command("verify")(verify)
    group.command("repair")(repair)
    app.add_typer(group, name="log")


def dump(
    path: Annotated[str, typer.Argument(metavar="FILE|DIR", help="A .log file, or a partition's directory.")],
    records: Annotated[bool, typer.Option("--records", help="Print each batch's records too.")] = False,
) -> None:
    """Print the batches of a log file, and any damage. Changes nothing."""
    damaged = False
    with _system_errors():
        segments = segment_paths(path) if os.path.isdir(path) else [(_base_offset(path), path)]
        if not segments:
            raise CommandError(f"{path} holds no log files: name a .log file or a partition's directory")
        for base_offset, segment_path in segments:
            print(segment_path)
            file = open_for_reading(segment_path)
            for found in walk(file, base_offset):
                if isinstance(found, Damage):
                    damaged = True
                    print(f"  DAMAGED {_stretch(found)}: {found.reason}")
                else:
                    _print_batch(file, found, records=records)
    if damaged:
        raise typer.Exit(EXIT_FAILURE)


def verify(
    data_directory: DirectoryArgument,
    topic: Annotated[str | None, typer.Option(help="Only this topic.")] = None,
) -> None:
    """Check every batch, its checksum included, and every index. Changes nothing; exit status 1 if damage is found."""
    bad = 0
    with _system_errors():
        directory = DataDirectory(data_directory)
        partitions = directory.partitions(topic)
        for topic_partition in partitions:
            report = directory.verify(topic_partition)
            _print_report(report)
            bad += not report.is_good
    if bad:
        print(f"{bad} of {counted(len(partitions), 'partition')} damaged: see `flowstone log repair --help`")
        raise typer.Exit(EXIT_FAILURE)
    print(f"{counted(len(partitions), 'partition')}, nothing damaged")


def repair(
    data_directory: DirectoryArgument,
    topic: Annotated[str, typer.Option(help="The damaged partition's topic.")],
    partition: Annotated[int, typer.Option(help="The damaged partition's number.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this only what would be lost is shown.")] = False,
) -> None:
    """Take the damage out of a partition, so that the broker serves it again.

    The damaged batches are lost; every other record stays, at its offset. Readers skip the lost offsets. The damaged
    file is kept under a new name ending in .damaged. The broker must be stopped.
    """
    with _system_errors(), _locked(data_directory):
        directory, topic_partition = DataDirectory(data_directory), TopicPartition(topic, partition)
        if topic_partition not in directory.partitions(topic):
            raise CommandError(f"{data_directory} holds no partition {partition} of {topic}")
        report = directory.verify(topic_partition)
        _print_report(report)
        if not report.damages:
            print(
                "nothing to repair" + ("; the broker makes bad indexes again by itself" if report.bad_indexes else "")
            )
            return
        if not yes:
            raise CommandError("the damaged batches named above would be lost: run it again with --yes to repair")
        for path in dict.fromkeys(damage.path for damage in report.damages):
            kept = repair_segment(path, [damage for damage in report.damages if damage.path == path])
            print(f"repaired {path}; the damaged file is now {kept}")


@contextmanager
def _system_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CommandError(f"cannot use {error.filename}: {error.strerror}") from None


@contextmanager
def _locked(data_directory: str) -> Iterator[None]:
    """Nothing else may use the directory meanwhile."""
    if not os.path.isdir(data_directory):
        raise CommandError(f"{data_directory} is no directory: name the broker's data directory")
    try:
        lock = SystemFiles().lock(f"{data_directory}/{LOCK_FILE}")
    except BlockingIOError:
        raise CommandError(f"a broker is running on {data_directory}: stop it first") from None
    try:
        yield
    finally:
        lock.release()


def _base_offset(path: str) -> int:
    digits = os.path.basename(path).removesuffix(LOG_SUFFIX)
    if not digits.isdigit():
        raise CommandError(f"{path} is not named like a log file, such as {0:020d}{LOG_SUFFIX}")
    return int(digits)


def _stretch(damage: Damage) -> str:
    where = f"position {damage.position} to {damage.end_position}"
    if damage.next_offset is None:
        return f"from offset {damage.first_offset} on ({where})"
    if damage.next_offset <= damage.first_offset:
        return f"at offset {damage.first_offset} ({where})"
    return f"{_offsets(damage.first_offset, damage.next_offset - 1)} ({where})"


def _offsets(first: int, last: int) -> str:
    return f"offset {first}" if first == last else f"offsets {first} to {last}"


def _print_report(report: PartitionReport) -> None:
    found = [counted(report.record_count, "record"), counted(report.segment_count, "segment")]
    if report.end_offset > report.first_offset:
        found.insert(1, _offsets(report.first_offset, report.end_offset - 1))
    print(f"{report.topic_partition}: {', '.join(found)}: {'good' if report.is_good else 'DAMAGED'}")
    for damage in report.damages:
        print(f"  {damage.path}: {_stretch(damage)}: {damage.reason}")
    for wrong in report.bad_indexes:
        print(f"  {wrong}")
    if report.unfinished is not None:
        where = f"{report.unfinished.path}: {_stretch(report.unfinished)}"
        print(f"  {where}: an unfinished write, which the next start cuts off")


def _print_batch(file: File, batch: ScannedBatch, *, records: bool) -> None:
    header = batch.header
    cells = [
        _offsets(header.base_offset, header.last_offset),
        f"position {batch.position}",
        f"{header.size_bytes} bytes",
        counted(header.record_count, "record"),
        f"codec {header.codec.name.lower()}",
        f"newest {_time(header.max_timestamp)}",
        f"epoch {header.partition_leader_epoch}",
    ]
    if header.producer_id != NO_PRODUCER_ID:
        cells.append(f"producer {header.producer_id}/{header.producer_epoch} sequence {header.base_sequence}")
    cells += [
        name for name, holds in (("transactional", header.is_transactional), ("control", header.is_control)) if holds
    ]
    print("  " + ", ".join(cells))
    if not records:
        return
    try:
        for record in decode_records(file.read(batch.position, header.size_bytes)):
            headers = "".join(f" {name}={_text(value)}" for name, value in record.headers)
            print(f"    {record.offset} {_time(record.timestamp)} {_text(record.key)} {_text(record.value)}{headers}")
    except CorruptBatch as error:
        print(f"    its records cannot be read: {error}")


def _time(timestamp_ms: int) -> str:
    if timestamp_ms < 0:
        return "none"
    try:
        return (
            datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        )
    except (ValueError, OverflowError):  # a producer may claim any time
        return f"{timestamp_ms} ms"


def _text(data: bytes | None) -> str:
    return "null" if data is None else repr(data)[1:]
