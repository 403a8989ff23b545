"""The metadata log's file, once in every log directory, so that losing one disk does not lose the topics.

A write is complete once it is durable in every usable copy. A copy that fails is dropped; before the next write is
complete, the others record which copies are left: the copies' history. At the start the copy with the longest history
is used, and of several such the one with most records; the others are overwritten with it. If two histories diverge,
each copy was written to while the other was missing. Only an operator can decide between them: the broker refuses to
start.

With one directory there is one copy and no history. Waits for the disk: for a thread, and for the start.
"""

from __future__ import annotations

import errno
import logging
import posixpath
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress

from flowstone.cluster.image.records import MetadataRecord, UnknownRecord
from flowstone.cluster.logs.log_batches import read_batches
from flowstone.errors import StartupError, StorageFault
from flowstone.ports.files import File, Files

# No "-<number>" at the end, as a partition's directory has, so no topic's name can collide with it.
DIRECTORY = "__cluster_metadata"
FILE_NAME = "00000000000000000000.log"
HISTORY_NAME = "copies"
# Beside the file if it is only a copy (`local_copy`): the log itself is in ZooKeeper.
MARK_NAME = "zookeeper"
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)

_log = logging.getLogger(__name__)


def is_only_a_copy(files: Files, log_directory: str) -> bool:
    """Return whether the directory holds a broker's copy of the metadata that its cluster stores in ZooKeeper."""
    return files.exists(posixpath.join(log_directory, DIRECTORY, MARK_NAME))


class OutOfSpaceError(Exception):
    """A write was undone because the disk is full."""


class _Copy:
    def __init__(self, files: Files, log_directory: str) -> None:
        """Open the copy, made if there is none. Raises OSError if the disk fails."""
        self.log_directory = log_directory
        self.path = posixpath.join(log_directory, DIRECTORY, FILE_NAME)
        self._files = files
        self._history_path = posixpath.join(log_directory, DIRECTORY, HISTORY_NAME)
        files.make_directory(posixpath.dirname(self.path))
        self.file: File = files.open(self.path, create=True)
        files.sync_directory(posixpath.dirname(self.path))
        self.data = self.file.read(0, self.file.size())
        self.size_bytes = len(self.data)
        self.history = self._read_history()

    def _read_history(self) -> list[str]:
        if not self._files.exists(self._history_path):
            return []
        return self._files.read(self._history_path).decode(errors="replace").splitlines()

    def write_history(self, history: list[str]) -> None:
        self._files.replace(self._history_path, "".join(f"{entry}\n" for entry in history).encode())
        self.history = history

    def make(self, data: bytes) -> None:
        """Make `data` the file's only content, durably. Used at the start."""
        if self.data[: len(data)] != data:
            _log.warning("%s is out of date, or damaged, and is written anew", self.path)
            self.replace(data)
        else:
            if len(self.data) > len(data):
                _log.warning("%s: cut off %d bytes of an unfinished write", self.path, len(self.data) - len(data))
                self.file.truncate(len(data))
            self.file.sync()  # a killed process's write is served from now on, and must survive a power loss
        self.data, self.size_bytes = b"", len(data)

    def replace(self, data: bytes) -> None:
        self._files.replace(self.path, data)
        self.file.close()
        self.file = self._files.open(self.path)
        self.size_bytes = len(data)


class MetadataCopies:
    def __init__(self, files: Files, log_directories: Sequence[str], *, is_incomplete: bool = False) -> None:
        """Open the copies. `is_incomplete` says that a log directory is missing, so that missing metadata has been
        lost.
        """
        self._files, self._log_directories, self._is_incomplete = files, log_directories, is_incomplete
        self._copies: list[_Copy] = []

    @property
    def path(self) -> str:
        """The path of the first copy, for messages."""
        return posixpath.join(self._log_directories[0], DIRECTORY, FILE_NAME)

    @property
    def size_bytes(self) -> int:
        return max(copy.size_bytes for copy in self._copies)

    # The start

    def load(self) -> tuple[int, list[MetadataRecord]]:
        """Return the offset of the first record, and all the records. Raises StartupError if that is not possible."""
        assert not self._copies, "a metadata log is loaded once"
        faults: dict[str, Exception] = {}
        found: list[tuple[_Copy, int, list[MetadataRecord], int]] = []
        for log_directory in self._log_directories:
            try:
                copy = _Copy(self._files, log_directory)
                self._copies.append(copy)
                found.append((copy, *read_batches(copy.data)))
            # not damage: other copies, which may have fewer records, must not replace it
            except UnknownRecord as newer:
                raise StartupError(f"the metadata log {copy.path} cannot be read: {newer}") from newer
            except StorageFault as fault:
                faults[copy.path] = fault
            except OSError as error:
                faults[log_directory] = error
        if not found:
            told = "; ".join(f"{path} cannot be read: {fault}" for path, fault in faults.items())
            raise StartupError(f"the metadata log {told}") from next(iter(faults.values()))
        best, first_offset, records, valid_bytes = self._choose(found)
        if self._is_incomplete and not records:
            raise StartupError(f"the metadata log is not in {best.log_directory}, and a data directory is missing")
        data = best.data[:valid_bytes]
        self._on_all(lambda copy: copy.make(data))
        self._note_who_is_left()
        return first_offset, records

    def _choose(
        self, found: Sequence[tuple[_Copy, int, list[MetadataRecord], int]]
    ) -> tuple[_Copy, int, list[MetadataRecord], int]:
        best = max(found, key=lambda each: (len(each[0].history), each[1] + len(each[2])))
        for copy in self._copies:
            if copy.history != best[0].history[: len(copy.history)]:
                raise StartupError(
                    f"the metadata logs {best[0].path} and {copy.path} were both changed while the other one was "
                    "missing; move the data directory with the wrong one elsewhere"
                )
        return best

    # Writing

    def write(self, batch: bytes) -> None:
        """Write a batch durably to every usable copy. Raises OutOfSpaceError if it was undone, OSError if the last copy
        failed.
        """
        try:
            self._on_all(lambda copy: _append(copy, batch))
        except OutOfSpaceError:
            self._on_all(lambda copy: copy.file.truncate(copy.size_bytes))
            raise
        self._on_all(lambda copy: copy.file.sync())
        for copy in self._copies:
            copy.size_bytes += len(batch)

    def replace(self, data: bytes) -> None:
        """Replace the whole file by `data`. Raises OutOfSpaceError if some copies are unchanged, which is harmless."""
        full: list[OSError] = []

        def replace(copy: _Copy) -> None:
            try:
                copy.replace(data)
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                full.append(error)

        self._on_all(replace)
        if full:
            raise OutOfSpaceError(str(full[0])) from full[0]

    def close(self) -> None:
        for copy in self._copies:
            copy.file.close()

    def _on_all(self, action: Callable[[_Copy], None]) -> None:
        """Run the action on all copies and drop those on which it fails. Raises OSError if none is left."""
        failed: list[tuple[_Copy, OSError]] = []
        for copy in self._copies:
            try:
                action(copy)
            except OSError as error:
                failed.append((copy, error))
        if not failed:
            return
        if len(failed) == len(self._copies):
            raise failed[0][1]
        for copy, cause in failed:
            _log.error("%s failed and is left behind: %s", copy.path, cause)
            self._copies.remove(copy)
            with suppress(OSError):
                copy.file.close()
        self._note_who_is_left()

    def _note_who_is_left(self) -> None:
        if len(self._log_directories) == 1 and not self._is_incomplete:
            return
        left = ",".join(sorted(copy.log_directory for copy in self._copies))
        history = self._copies[0].history
        are_alike = all(copy.history == history for copy in self._copies)
        if not are_alike or not history or history[-1].partition(":")[2] != left:
            longest = max((copy.history for copy in self._copies), key=len)
            entry = f"{uuid.uuid4().hex}:{left}"
            self._on_all(lambda copy: copy.write_history([*longest, entry]))


def _append(copy: _Copy, batch: bytes) -> None:
    try:
        copy.file.write(copy.size_bytes, [batch])
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        raise OutOfSpaceError(str(error)) from error
