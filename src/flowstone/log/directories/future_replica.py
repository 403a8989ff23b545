"""The files of a future replica: the copy of a partition's directory in another log directory, until it replaces it.

For a worker thread: everything here waits for the disk and does not touch a log. The directory has a name that a start
does not take for a partition. Each log file is copied in parts, which are durable when `copy_part` returns, and so are
the indexes of a sealed segment, which do not change, after `copy_indexes`. `complete` copies everything else, once the
source no longer changes.

The file `moved-from` distinguishes the copy from its source between the two renames that swap them: a start that finds
a partition in two directories deletes the one with this file, since the source takes no records until it is renamed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import uuid4

from flowstone.log.lifecycle.directory_identity import FILE_NAME_BYTES_MAX, LogDirectory
from flowstone.log.segments.compaction_job import CLEANED_SUFFIX
from flowstone.log.segments.partition_directory import DELETED_SUFFIX
from flowstone.log.segments.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_path,
)
from flowstone.log.segments.segment_swap import SWAP_SUFFIX
from flowstone.log.segments.shared_files import TEMPORARY_SUFFIX
from flowstone.ports.files import Files
from flowstone.types import TopicPartition

FUTURE_SUFFIX = "-future"
MOVED_FROM = "moved-from"
COPY_BYTES = 1024 * 1024
_FUTURE_DIRECTORY = re.compile(rf"([a-zA-Z0-9._-]+)-(\d+)\.[0-9a-f]{{32}}{FUTURE_SUFFIX}")
_INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
_UNFINISHED_SUFFIXES = (DELETED_SUFFIX, TEMPORARY_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX)


class SegmentFiles(NamedTuple):
    """The sizes of a copied segment's files; None for an index that does not exist."""

    size_bytes: int
    offset_index_bytes: int | None
    time_index_bytes: int | None
    transaction_index_bytes: int | None


def future_path(directory: LogDirectory, topic_partition: TopicPartition) -> str | None:
    """Return the path of a future replica, or None if the topic's name is too long for one."""
    name = f"{topic_partition}.{uuid4().hex}{FUTURE_SUFFIX}"
    return directory.file(name) if len(name) <= FILE_NAME_BYTES_MAX else None


def unfinished(directory: LogDirectory) -> dict[str, TopicPartition]:
    """Return the future replicas in a log directory, by their paths."""
    names = directory.files.names(directory.path)
    found = ((name, match) for name in names if (match := _FUTURE_DIRECTORY.fullmatch(name)))
    return {directory.file(name): TopicPartition(match[1], int(match[2])) for name, match in found}


def copy_part(files: Files, source: str, target: str, base_offset: int, begin: int, end: int) -> None:
    """Copy bytes of one segment's log. Raises OSError, FileNotFoundError if the segment is gone."""
    from_file = files.open(segment_path(source, base_offset, LOG_SUFFIX))
    to_file = files.open(segment_path(target, base_offset, LOG_SUFFIX), create=True)
    if begin == 0:
        to_file.truncate(0)
    while begin < end:
        data = from_file.read(begin, min(COPY_BYTES, end - begin))
        if not data:
            raise FileNotFoundError(f"{from_file.path} has less than {end} bytes")
        to_file.write(begin, [data])
        begin += len(data)
    to_file.sync()


def copy_indexes(files: Files, source: str, target: str, base_offset: int) -> list[str]:
    """Copy the indexes of a sealed segment; return the names of the files. Raises OSError as `copy_part` does."""
    names = [segment_path("", base_offset, suffix).lstrip("/") for suffix in _INDEX_SUFFIXES]
    names = [name for name in names if files.exists(f"{source}/{name}")]
    for name in names:
        _copy_file(files, source, target, name)
    return names


def _copy_file(files: Files, source: str, target: str, name: str) -> None:
    path = f"{target}/{name}"
    files.copy(f"{source}/{name}", path, files.size(f"{source}/{name}"))
    files.open(path).sync()


def remove_segment(files: Files, target: str, base_offset: int) -> None:
    """Remove the copy of a segment that the source no longer has."""
    for suffix in (*_INDEX_SUFFIXES, LOG_SUFFIX):
        path = segment_path(target, base_offset, suffix)
        if files.exists(path):
            files.remove(path)


def complete(
    files: Files,
    source: str,
    target: str,
    copied: Mapping[int, int],
    sizes: Mapping[int, int],
    source_id: str,
    indexes: Iterable[str] = (),
) -> dict[int, SegmentFiles]:
    """Copy what is missing and make all of it durable; return the files of each segment by its base offset.

    `copied` and `sizes` are the bytes of each segment's log that were copied, and that it has; `indexes` are the files
    that `copy_indexes` has copied of these segments. Raises OSError.
    """
    for base_offset, size_bytes in sizes.items():
        begin = copied.get(base_offset, 0)
        if begin < size_bytes or not begin:
            copy_part(files, source, target, base_offset, begin, size_bytes)
    durable = set(indexes)
    kept = {segment_path("", base, LOG_SUFFIX).lstrip("/") for base in sizes} | durable
    for name in files.names(target):
        if name not in kept:
            files.remove(f"{target}/{name}")
    for name in files.names(source):
        if name.endswith((LOG_SUFFIX, *_UNFINISHED_SUFFIXES)) or name == MOVED_FROM or name in durable:
            continue
        _copy_file(files, source, target, name)
    files.replace(f"{target}/{MOVED_FROM}", f"{source_id}\n".encode())
    files.sync_directory(target)
    return {base: _segment_files(files, target, base, size) for base, size in sizes.items()}


def _segment_files(files: Files, path: str, base_offset: int, size_bytes: int) -> SegmentFiles:
    indexes = []
    for suffix in _INDEX_SUFFIXES:
        index = segment_path(path, base_offset, suffix)
        indexes.append(files.size(index) if files.exists(index) else None)
    return SegmentFiles(size_bytes, *indexes)


def rename_into_place(files: Files, future: str, path: str, directory: str) -> None:
    """Give a complete future replica the partition's name, durably. Raises OSError."""
    files.rename(future, path)
    files.sync_directory(directory)


def is_marked(files: Files, path: str) -> bool:
    """Return whether a partition's directory is a copy whose move did not end before the broker stopped."""
    return files.exists(f"{path}/{MOVED_FROM}")


def remove_mark(files: Files, path: str) -> None:
    """Record durably that the move is complete: the source is removed, and no checkpoint names it."""
    if is_marked(files, path):
        files.remove(f"{path}/{MOVED_FROM}")
        files.sync_directory(path)
