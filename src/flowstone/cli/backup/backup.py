"""`flowstone backup`: copies selected topics to files, reading from the running broker like any consumer.

Each partition is read from its first offset to its high watermark at that time; later records are not in the backup.
Batches are stored unchanged, so offsets, timestamps, headers and producers are kept. The files are then opened as a
broker opens its own: every checksum is verified, and indexes, leader epochs and producer state are created, so that a
restore only has to copy.

Compaction may remove a record in favour of a newer one above the high watermark that was used. A log with missing
offsets is therefore read on to its new end until the last read has no missing offsets, so that the last value of every
key is in the backup. Groups' offsets are read first, so they are within the range of the records.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Annotated, NamedTuple

import typer

from flowstone.cli.backup.backup_files import (
    MANIFEST,
    Backup,
    BackupPartition,
    BackupTopic,
    list_files,
    partition_directory,
    write_manifest,
)
from flowstone.cli.backup.backup_groups import read_groups
from flowstone.cli.common.clients import DEFAULT_BOOTSTRAP, Bootstrap, connect, fetch_metadata, find_topic
from flowstone.cli.common.errors import CommandError, system_errors
from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.cli.common.progress import Advance, progress_bar
from flowstone.cli.common.text import counted
from flowstone.cli.topic.commands import own_settings
from flowstone.client import EARLIEST, LATEST, Cluster, OffsetsLost, TopicRecreated
from flowstone.config import GIB, TopicConfig
from flowstone.errors import StorageFault
from flowstone.log.lifecycle.log_recovery import recover
from flowstone.log.lifecycle.stored_offsets import StoredOffsets
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.segments.file_handles import FileHandles
from flowstone.log.segments.partition_directory import PartitionDirectory
from flowstone.log.segments.segment import LOG_SUFFIX, RELATIVE_OFFSET_MAX, segment_path
from flowstone.ports.clock import SystemClock
from flowstone.ports.files import File
from flowstone.ports.system_files import SystemFiles
from flowstone.types import ZERO_UUID, TopicPartition
from flowstone.wire.record_batch import BatchHeader, CorruptBatch, parse_header

CLIENT_ID = "flowstone-backup"
SEGMENT_BYTES_MAX = GIB
OPEN_FILES_MAX = 16
# How often a partition is restarted because retention deleted records that were about to be read.
TRIES_MAX = 5
# How often a compacted partition is read further because the last read had missing offsets.
ROUNDS_MAX = 100


def register(app: typer.Typer) -> None:
    app.command("backup")(backup)


def backup(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="The topics' names.")],
    to: Annotated[str, typer.Option(metavar="DIR", help="The directory for the backup, new or empty.")],
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Copy topics with their settings and groups' offsets to files, while the broker runs; `restore` restores them."""
    admin = connect(bootstrap)
    names = list(dict.fromkeys(topics))
    counts = {name: len(find_topic(admin, bootstrap, name, to_use=False).partitions) for name in names}
    settings = {name: own_settings(admin, bootstrap, name) for name in names}
    cluster_id = fetch_metadata(admin, bootstrap).cluster_id or ""
    groups = read_groups(admin, bootstrap, names)
    _make_empty(to)
    with Cluster(bootstrap, client_id=CLIENT_ID) as cluster, system_errors(to):
        topic_ids = {name: each.topic_id for name, each in cluster.describe_topics(names).items()}
        ends = cluster.list_offsets(dict.fromkeys(_partitions(counts), LATEST))
        starts = cluster.list_offsets(dict.fromkeys(_partitions(counts), EARLIEST))
        total = sum(ends[each].offset - starts[each].offset for each in ends)
        with progress_bar("backing up", total) as advance:
            writer = _Writer(cluster, topic_ids, to, advance)
            found = [
                BackupTopic(name, settings[name], writer.write_topic(name, count), groups[name])
                for name, count in counts.items()
            ]
        for name, each in cluster.describe_topics(names).items():
            if each.topic_id != topic_ids.get(name):
                raise TopicRecreated(name)
    made = Backup(cluster_id, SystemClock().time_ms(), found)
    with system_errors(to):
        SystemFiles().sync_directory(to)
        write_manifest(to, made)
    for topic in made.topics:
        _print_topic(topic, to, json_output=json_output)


def _partitions(counts: dict[str, int]) -> list[TopicPartition]:
    return [TopicPartition(name, number) for name, count in counts.items() for number in range(count)]


def _make_empty(directory: str) -> None:
    with system_errors(directory):
        if os.path.exists(f"{directory}/{MANIFEST}"):
            raise CommandError(f"{directory} contains a backup already: name a new directory")
        if os.path.exists(directory) and not os.path.isdir(directory):
            raise CommandError(f"{directory} is not a directory: name a new directory")
        if os.path.isdir(directory) and os.listdir(directory):
            raise CommandError(f"{directory} is not empty: name a new directory")
        SystemFiles().make_directory(directory)


def _print_topic(topic: BackupTopic, directory: str, *, json_output: bool) -> None:
    records = sum(each.end_offset - each.log_start_offset for each in topic.partitions)
    if json_output:
        print_document(
            {
                "topic": topic.name,
                "directory": directory,
                "size_bytes": topic.size_bytes,
                "groups": [group.group_id for group in topic.groups],
                "partitions": [
                    {
                        "partition": each.partition,
                        "log_start_offset": each.log_start_offset,
                        "end_offset": each.end_offset,
                        "size_bytes": each.size_bytes,
                    }
                    for each in topic.partitions
                ],
            }
        )
    else:
        partitions = counted(len(topic.partitions), "partition")
        groups = f", offsets of {counted(len(topic.groups), 'group')}" if topic.groups else ""
        print(f"backed up {topic.name}: {partitions}, {counted(records, 'offset')}, {topic.size_bytes} bytes{groups}")


class _Batches(NamedTuple):
    """The whole batches of one fetch response."""

    data: memoryview
    headers: list[BatchHeader]


class _Writer:
    def __init__(
        self, cluster: Cluster, topic_ids: Mapping[str, bytes | None], directory: str, advance: Advance
    ) -> None:
        self._cluster, self._topic_ids, self._directory, self._advance = cluster, topic_ids, directory, advance
        self._done = 0

    def write_topic(self, name: str, partitions: int) -> list[BackupPartition]:
        return [self.write(TopicPartition(name, number)) for number in range(partitions)]

    def write(self, where: TopicPartition) -> BackupPartition:
        """Copy one partition into its directory; the files are durable on return, except the directory's name."""
        path = partition_directory(self._directory, *where)
        for _ in range(TRIES_MAX):
            end = self._offset(where, LATEST)
            start = self._offset(where, EARLIEST)
            if not end:
                return BackupPartition(where.partition, 0, 0)
            try:
                reached = self._read(where, path, start, end)
                break
            except OffsetsLost:
                shutil.rmtree(path)
        else:
            raise CommandError(
                f"{where} loses its oldest records to retention faster than they can be read: raise its retention"
            )
        _finish(where, path, start, reached)
        return BackupPartition(where.partition, start, reached, list_files(path))

    def _offset(self, where: TopicPartition, place: int) -> int:
        return self._cluster.list_offsets({where: place})[where].offset

    def _read(self, where: TopicPartition, path: str, start: int, end: int) -> int:
        """Copy the batches from `start`; return the end of the copy."""
        SystemFiles().new_directory(path)
        segments = _Segments(path, start)
        position = start
        for _ in range(ROUNDS_MAX):
            whole = True
            for batches in self._fetch(where, position, end):
                for header in batches.headers:
                    whole = whole and header.base_offset <= position and _is_dense(header)
                    self._count(header.next_offset - position)
                    position = header.next_offset
                segments.write(batches)
            if whole:
                break
            end = self._offset(where, LATEST)
        segments.close(position)
        return position

    def _fetch(self, where: TopicPartition, start: int, end: int) -> Iterator[_Batches]:
        for fetched in self._cluster.fetch(where, start, end, topic_id=self._topic_ids.get(where.topic)):
            headers, position = [], 0
            try:
                while position < len(fetched.records):
                    header = parse_header(fetched.records, position)
                    if header.base_offset >= end:  # appended after the high watermark was read
                        break
                    headers.append(header)
                    position += header.size_bytes
            except CorruptBatch as error:
                raise CommandError(f"{where}: the broker sent a damaged batch: {error}") from None
            if headers:
                yield _Batches(fetched.records[:position], headers)

    def _count(self, offsets: int) -> None:
        self._done += offsets
        self._advance(self._done)


def _is_dense(header: BatchHeader) -> bool:
    return header.record_count == header.last_offset_delta + 1


class _Segments:
    """Writer of consecutive log files that rolls to the next one by the log's own rules."""

    def __init__(self, path: str, start_offset: int) -> None:
        self._path = path
        self._files = SystemFiles()
        self._file: File | None = None
        self._base_offset = self._size_bytes = 0
        self._next_offset = start_offset

    def write(self, batches: _Batches) -> None:
        first, last = batches.headers[0], batches.headers[-1]
        if (
            self._file is None
            or self._size_bytes + len(batches.data) > SEGMENT_BYTES_MAX
            or last.last_offset - self._base_offset > RELATIVE_OFFSET_MAX
        ):
            self._begin(min(first.base_offset, self._next_offset))
        assert self._file is not None
        self._size_bytes += self._file.write(self._size_bytes, [batches.data])
        self._next_offset = last.next_offset

    def close(self, end_offset: int) -> None:
        """Close the last file; a log without records also has a file, whose name is its next offset."""
        if self._file is None:
            self._begin(end_offset)
        assert self._file is not None
        self._file.close()

    def _begin(self, base_offset: int) -> None:
        if self._file is not None:
            self._file.close()
        self._file = self._files.open(segment_path(self._path, base_offset, LOG_SUFFIX), create=True)
        self._base_offset, self._size_bytes = base_offset, 0


def _finish(where: TopicPartition, path: str, start: int, end: int) -> None:
    """Open the log as after a crash, which checks all of it, and close it as at a clean stop; it is durable then."""
    files, clock = SystemFiles(), SystemClock()
    handles = FileHandles(files, OPEN_FILES_MAX)
    directory = PartitionDirectory(files, path, exists=True)
    log = PartitionLog(where, ZERO_UUID, TopicConfig(), clock, handles, directory)
    try:
        recover(log, directory, handles, clock, StoredOffsets(0, start, clean=False))
        if log.log_end_offset != end:
            raise CommandError(f"{where}: what was read ends at offset {log.log_end_offset}, not at {end}: try again")
        task = log.closing_task()
        assert task is not None
        task.run()
    except StorageFault as fault:
        raise CommandError(f"{where} could not be stored: {fault}") from fault
    finally:
        log.close()
