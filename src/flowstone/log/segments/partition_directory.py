"""A partition's directory: its files besides the segments, and which of its changes a power loss could still undo.

Owns the files beside the segments (partition.metadata, leader-epoch-checkpoint, producer snapshots) and the list of
what is written but not yet durable. Nothing here waits for the disk on the event loop: files are written to the page
cache, and a `FlushTask` makes them durable, in a thread, before the recovery point may pass them.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Sequence
from typing import NamedTuple

from flowstone.log.segments.branch_point import BranchPoint, branch_point_name, encode_branch_source
from flowstone.log.segments.checkpoints import LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, encode_partition_metadata
from flowstone.log.segments.file_names import offset_name
from flowstone.ports.files import File, Files

SNAPSHOT_SUFFIX = ".snapshot"
HOLE_SUFFIX = ".hole"
HOLES_KEPT = 2
DELETED_SUFFIX = ".deleted"
SNAPSHOTS_KEPT = 2
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


def snapshot_path(directory: str, offset: int) -> str:
    return f"{directory}/{offset_name(offset, SNAPSHOT_SUFFIX)}"


def hole_path(directory: str, end_offset: int) -> str:
    return f"{directory}/{offset_name(end_offset, HOLE_SUFFIX)}"


class LogPosition(NamedTuple):
    """A position between two batches: the next offset, and where its batch lies or will lie."""

    offset: int
    segment_base_offset: int
    position: int


class FlushTask(NamedTuple):
    """Makes a log durable up to `end`. Call `run` in a flush thread. Raises OSError if a file call fails."""

    end: LogPosition
    generation: int  # a truncation in between voids the outcome
    files: Files
    unsynced: tuple[File, ...]
    replacements: tuple[tuple[str, bytes], ...]
    removals: tuple[str, ...]
    directories: tuple[str, ...]
    is_one_file: bool  # syncing it is all there is to do

    def run(self) -> None:
        self.replace_files()
        for file in self.unsynced:
            file.sync()
        for directory in self.directories:
            self.files.sync_directory(directory)

    def replace_files(self) -> None:
        """Replace the files that are due, and remove the outdated ones."""
        for path in self.removals:
            if self.files.exists(path):  # skipped if the partition was deleted, or cut, meanwhile
                self.files.remove(path)
        for path, data in self.replacements:
            try:
                self.files.replace(path, data)
            except OSError as error:
                if error.errno not in NO_SPACE or posixpath.basename(path) != LEADER_EPOCH_CHECKPOINT:
                    raise
                self._remove_outdated(path)

    def _remove_outdated(self, path: str) -> None:
        """Remove an outdated file that a full disk prevents from being replaced: it can be rebuilt from the log."""
        if self.files.exists(path):
            self.files.remove(path)
        self.files.sync_directory(posixpath.dirname(path))


class PartitionDirectory:
    def __init__(self, files: Files, path: str, *, exists: bool) -> None:
        self.files = files
        self.path = path
        self.exists = exists
        self._unsynced: list[File] = []
        self._replacements: dict[str, bytes] = {}
        self._removals: dict[str, None] = {}
        self._directories: dict[str, None] = {}
        self._snapshots: list[int] = []
        self.hole_ends: list[int] = []

    @property
    def has_unsynced(self) -> bool:
        return bool(self._unsynced or self._replacements or self._directories)

    def create(self, topic_id: bytes) -> None:
        """Make the directory, the topic id first, so that a directory with records always says whose they are."""
        self.files.new_directory(self.path)
        metadata = self.files.open(f"{self.path}/{PARTITION_METADATA}", create=True)
        metadata.truncate(0)
        metadata.write(0, [encode_partition_metadata(topic_id)])
        self._unsynced.append(metadata)
        self._note_all_names_changed()

    def note_found(self, names: Sequence[str], recovery_point: int) -> None:
        """Record files of an earlier run, which may have ended before anything except the log was durable.

        If there was a recovery point, everything before it is durable: the topic id, and the snapshots below it.
        """
        for name in names:
            if name.endswith(SNAPSHOT_SUFFIX):
                is_durable = name < offset_name(recovery_point)
            else:
                is_durable = name != PARTITION_METADATA or recovery_point > 0
            if not is_durable:
                self._unsynced.append(self.files.open(f"{self.path}/{name}"))
        self._note_all_names_changed()

    def _note_all_names_changed(self) -> None:
        self._directories[self.path] = None
        self._directories[posixpath.dirname(self.path)] = None

    def note_unsynced(self, *files: File) -> None:
        self._unsynced.extend(files)

    def note_names_changed(self) -> None:
        self._directories[self.path] = None

    def store_topic_id(self, topic_id: bytes) -> None:
        self._replacements[f"{self.path}/{PARTITION_METADATA}"] = encode_partition_metadata(topic_id)

    def store_epochs(self, data: bytes) -> None:
        self._replacements[f"{self.path}/{LEADER_EPOCH_CHECKPOINT}"] = data

    def store_branch_point(self, point: BranchPoint) -> None:
        data = encode_branch_source(point.source_topic, point.source_topic_id)
        self._replacements[f"{self.path}/{branch_point_name(point.offset)}"] = data

    def take(self, end: LogPosition, generation: int, active: File) -> FlushTask:
        """Return a task for everything not durable yet, including `active`, the file being appended to."""
        task = FlushTask(
            end,
            generation,
            self.files,
            (*self._unsynced, active),
            tuple(self._replacements.items()),
            tuple(self._removals),
            tuple(self._directories),
            is_one_file=not self.has_unsynced,
        )
        self._unsynced, self._replacements, self._removals, self._directories = [], {}, {}, {}
        return task

    # Producer snapshots, named by the offset at which they were taken

    def write_snapshot(self, offset: int, data: bytes) -> None:
        """Write a snapshot. The next flush removes all but the newest, because a roll must not wait for that."""
        path = snapshot_path(self.path, offset)
        file = self.files.open(path, create=True)
        file.write(0, [data])
        if file.size() > len(data):
            file.truncate(len(data))
        self._unsynced.append(file)
        self._directories[self.path] = None
        self._removals.pop(path, None)
        offsets = sorted({*self._snapshots, offset})
        self._removals |= {snapshot_path(self.path, each): None for each in offsets[:-SNAPSHOTS_KEPT]}
        self._snapshots = offsets[-SNAPSHOTS_KEPT:]

    @property
    def snapshots(self) -> list[int]:
        return self._snapshots

    def keep_snapshots(self, offsets: list[int]) -> None:
        """Set the snapshots that were found, and remove all but the newest."""
        offsets = sorted(offsets)
        for offset in offsets[:-SNAPSHOTS_KEPT]:
            self.remove_snapshot(offset)
        self._snapshots = offsets[-SNAPSHOTS_KEPT:]

    def remove_snapshots_after(self, offset: int) -> bool:
        """Remove the snapshots after an offset; return whether there were any."""
        beyond = [each for each in self._snapshots if each > offset]
        for each in beyond:
            self.remove_snapshot(each)
            self._snapshots.remove(each)
        return bool(beyond)

    def remove_snapshot(self, offset: int) -> None:
        if self.files.exists(snapshot_path(self.path, offset)):
            self.files.remove(snapshot_path(self.path, offset))
            self._directories[self.path] = None

    # Holes

    def mark_hole(self, end_offset: int) -> None:
        """Mark that offsets are missing before the last batch, which ends there: a start must not take that for damage.

        The mark is an empty file, so that it is never half written.
        """
        if end_offset in self.hole_ends:
            return
        self.files.open(hole_path(self.path, end_offset), create=True)
        self._directories[self.path] = None
        self.hole_ends.append(end_offset)
        while len(self.hole_ends) > HOLES_KEPT:
            path = hole_path(self.path, self.hole_ends.pop(0))
            if self.files.exists(path):
                self.files.remove(path)
