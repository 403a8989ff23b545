"""A log directory itself: its lock, its identity (meta.properties), its checkpoints and the clean-shutdown marker.

Plain calls that wait for the disk, for start-up, stop and the worker thread of its logs. A directory whose disk fails
raises `StorageFault`; one that belongs to another broker raises `StartupError` with a message for the operator. Rules
for several directories together are in `opened_directories`.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Mapping
from typing import NamedTuple

from flowstone.errors import StartupError, StorageFault
from flowstone.log.segments.checkpoints import TIME_CHECKPOINT, decode_offsets, encode_offsets
from flowstone.ports.files import Files, Lock
from flowstone.types import TopicPartition, format_uuid

logger = logging.getLogger(__name__)

LOCK_FILE = ".lock"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN_MARKER = ".kafka_cleanshutdown"
CLEAN_STATE = ".flowstone-clean-state"
DELETE_SUFFIX = "-delete"
STAGED_SUFFIX = "-staged"
STRAY_SUFFIX = "-stray"
FILE_NAME_BYTES_MAX = 255
_UNCONFIRMED = b"unconfirmed"
_CLEAN_SHUTDOWN = b'{"version":0,"brokerEpoch":-1}'
_META_VERSION = "1"
_KNOWN_IDS = "flowstone.known.directory.ids"
_PARTITION_DIRECTORY = re.compile(r"([a-zA-Z0-9._-]+)-(\d+)")


class Identity(NamedTuple):
    cluster_id: str
    node_id: int
    directory_id: str
    # The ids of all log directories that the broker has had, this one included; empty if it never had another.
    known_ids: tuple[str, ...] = ()


class TimeCheckpoint(NamedTuple):
    """The steady time of a broker's last checkpoint, and whether anything has confirmed that time."""

    time_ms: int
    is_confirmed: bool


class LogDirectory:
    def __init__(self, files: Files, path: str) -> None:
        self.files = files
        self.path = path
        self.identity: Identity | None = None  # None: the directory is new
        self._lock: Lock | None = None

    def open(self) -> None:
        """Lock the directory and read its identity. Nothing is created: a directory that does not exist counts as new.

        Raises StorageFault if the disk fails or the identity is damaged, StartupError if another process has the
        directory.
        """
        try:
            if self.files.exists(self.file(META_PROPERTIES)):
                self._take_lock()
                self.identity = self._read_identity()
        except OSError as error:
            self.close()
            raise self._unusable(error) from error
        except StorageFault:
            self.close()
            raise

    def format(self, identity: Identity) -> None:
        """Write the identity into the directory, which is created if it is missing. Raises what `open` raises."""
        try:
            self.files.make_directory(self.path)
            self._take_lock()
            self.files.replace(self.file(META_PROPERTIES), _encode_properties(identity))
        except OSError as error:
            self.close()
            raise self._unusable(error) from error
        self.identity = identity

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def file(self, name: str) -> str:
        return f"{self.path}/{name}"

    def _take_lock(self) -> None:
        try:
            if self._lock is None:
                self._lock = self.files.lock(self.file(LOCK_FILE))
        except BlockingIOError as error:
            raise StartupError(f"the data directory {self.path} is in use by another process") from error

    def _read_identity(self) -> Identity:
        path = self.file(META_PROPERTIES)
        found = _decode_properties(self.files.read(path))
        if found is None:
            raise StorageFault(f"{path} is damaged: it should name version {_META_VERSION}, cluster.id and node.id")
        return found

    def _unusable(self, error: OSError) -> StorageFault:
        reason = f"{error.strerror}: {error.filename}" if error.filename is not None else error
        return StorageFault(f"the data directory {self.path} cannot be used: {reason}")

    # Partitions

    def partitions(self) -> list[TopicPartition]:
        found = []
        for name in self.files.names(self.path):
            match = _PARTITION_DIRECTORY.fullmatch(name)
            if match and self.files.is_directory(self.file(name)):
                found.append(TopicPartition(match[1], int(match[2])))
        return found

    def condemned(self) -> list[str]:
        """Return the directories of deleted partitions, and of unfinished branches, that are still there."""
        names = self.files.names(self.path)
        return [self.file(name) for name in names if name.endswith((DELETE_SUFFIX, STAGED_SUFFIX))]

    def condemned_partitions(self) -> set[str]:
        """Return the partitions whose deletion has begun, by the names that `condemned_name` gives them."""
        names = [path.rpartition("/")[2] for path in self.condemned()]
        return {name.rpartition(".")[0] for name in names if name.endswith(DELETE_SUFFIX)}

    def condemned_name(self, topic_partition: TopicPartition) -> str:
        """Return the part of a partition's name that the name of its condemned directory contains."""
        return self._other_name(str(topic_partition), DELETE_SUFFIX).rpartition("/")[2].rpartition(".")[0]

    def condemn(self, path: str) -> str:
        """Rename a partition's directory as that of a deleted partition, so that no start opens it again."""
        target = self._other_name(path, DELETE_SUFFIX)
        self.files.rename(path, target)
        return target

    def set_aside(self, path: str) -> str:
        """Rename a partition's directory so that no start opens or removes it; return the new path."""
        target = self._other_name(path, STRAY_SUFFIX)
        self.files.rename(path, target)
        return target

    def staged_name(self, path: str) -> str:
        """Return a path for staging a partition's directory; the next start removes unfinished ones."""
        return self._other_name(path, STAGED_SUFFIX)

    def _other_name(self, path: str, kind: str) -> str:
        suffix = f".{uuid.uuid4().hex}{kind}"
        name = path.rpartition("/")[2][: FILE_NAME_BYTES_MAX - len(suffix)]
        return self.file(name + suffix)

    # Checkpoints

    def read_offsets(self, name: str) -> dict[TopicPartition, int]:
        path = self.file(name)
        if not self.files.exists(path):
            return {}
        offsets = decode_offsets(self.files.read(path))
        if offsets is None:
            logger.warning("%s is damaged and will be rewritten", path)
        return offsets or {}

    def write_offsets(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        self.files.replace(self.file(name), encode_offsets(offsets))

    def read_time(self) -> TimeCheckpoint | None:
        """Return when the broker last wrote a checkpoint here; None if that is not known."""
        try:
            time_ms, *marks = self.files.read(self.file(TIME_CHECKPOINT)).split()
            return TimeCheckpoint(int(time_ms), _UNCONFIRMED not in marks)
        except (OSError, ValueError):
            return None

    def write_time(self, time: TimeCheckpoint) -> None:
        marks = b"" if time.is_confirmed else b" " + _UNCONFIRMED
        self.files.replace(self.file(TIME_CHECKPOINT), b"%d%s" % (time.time_ms, marks))

    def take_clean_marker(self) -> bool:
        """Return whether the last stop was clean. The marker stays until `remove_clean_marker`, after recovery."""
        return self.files.exists(self.file(CLEAN_SHUTDOWN_MARKER))

    def remove_clean_marker(self) -> None:
        """Remove the marker and the clean-stop state, which must never be combined with another stop's marker."""
        found = [path for name in (CLEAN_STATE, CLEAN_SHUTDOWN_MARKER) if self.files.exists(path := self.file(name))]
        for path in found:
            self.files.remove(path)
        if found:
            self.files.sync_directory(self.path)

    def write_clean_marker(self) -> None:
        self.files.replace(self.file(CLEAN_SHUTDOWN_MARKER), _CLEAN_SHUTDOWN)

    def read_clean_state(self) -> bytes:
        """Return the state that the last stop wrote (see `clean_stop_state`), empty if there is none."""
        path = self.file(CLEAN_STATE)
        return self.files.read(path) if self.files.exists(path) else b""

    def write_clean_state(self, data: bytes) -> None:
        self.files.replace(self.file(CLEAN_STATE), data)


def new_directory_id() -> str:
    """Return a new id. Never begins with a dash, which command lines would parse as an option."""
    while (text := format_uuid(uuid.uuid4().bytes)).startswith("-"):
        pass
    return text


def _encode_properties(identity: Identity) -> bytes:
    lines = [
        f"version={_META_VERSION}",
        f"cluster.id={identity.cluster_id}",
        f"node.id={identity.node_id}",
        f"directory.id={identity.directory_id}",
    ]
    if len(identity.known_ids) > 1:
        lines.append(f"{_KNOWN_IDS}={','.join(identity.known_ids)}")
    return ("\n".join(lines) + "\n").encode()


def _decode_properties(data: bytes) -> Identity | None:
    lines = [line.strip() for line in data.decode(errors="replace").splitlines()]
    fields = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    try:
        if fields["version"] != _META_VERSION:
            return None
        known_ids = tuple(filter(None, fields.get(_KNOWN_IDS, "").split(",")))
        return Identity(fields["cluster.id"], int(fields["node.id"]), fields.get("directory.id", ""), known_ids)
    except (KeyError, ValueError):
        return None
