"""The log directory itself: its lock, its identity (meta.properties), its checkpoints and the clean-shutdown marker.

Plain calls that wait for the disk, for start-up, stop and the manager's worker thread. What cannot be used is a
`StartupError` in a sentence for people.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Mapping
from typing import NamedTuple

from flowstone.errors import StartupError
from flowstone.log.checkpoints import decode_offsets, encode_offsets, format_uuid
from flowstone.ports.files import Files, Lock
from flowstone.types import TopicPartition

logger = logging.getLogger(__name__)

LOCK_FILE = ".lock"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN_MARKER = ".kafka_cleanshutdown"
DELETE_SUFFIX = "-delete"
STAGED_SUFFIX = "-staged"
FILE_NAME_BYTES_MAX = 255
_CLEAN_SHUTDOWN = b'{"version":0,"brokerEpoch":-1}'
_META_VERSION = "1"
_PARTITION_DIRECTORY = re.compile(r"([a-zA-Z0-9._-]+)-(\d+)")


class Identity(NamedTuple):
    cluster_id: str
    node_id: int
    directory_id: str


class LogDirectory:
    def __init__(self, files: Files, path: str) -> None:
        self.files = files
        self.path = path
        self.identity = Identity("", -1, "")
        self._lock: Lock | None = None

    def open(self, node_id: int, cluster_id: str | None) -> None:
        """Locks the directory and makes sure that it is this node's and this cluster's; None takes any cluster."""
        try:
            self.files.make_directory(self.path)
            self._lock = self.files.lock(self.file(LOCK_FILE))
            self.identity = self._identify(node_id, cluster_id)
        except BlockingIOError:
            raise StartupError(f"the data directory {self.path} is in use by another process") from None
        except OSError as error:
            self.close()
            raise StartupError(f"the data directory {self.path} cannot be used: {error}") from error
        except StartupError:
            self.close()
            raise

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def file(self, name: str) -> str:
        return f"{self.path}/{name}"

    def _identify(self, node_id: int, cluster_id: str | None) -> Identity:
        path = self.file(META_PROPERTIES)
        if not self.files.exists(path):
            identity = Identity(cluster_id or _new_id(), node_id, _new_id())
            self.files.replace(path, _encode_properties(identity))
            return identity
        found = _decode_properties(self.files.read(path))
        if found is None:
            raise StartupError(f"{path} is damaged: it should name version {_META_VERSION}, cluster.id and node.id")
        if found.node_id != node_id:
            raise StartupError(
                f"the data directory {self.path} belongs to node {found.node_id}, this broker's node.id is {node_id}"
            )
        if cluster_id is not None and found.cluster_id != cluster_id:
            raise StartupError(
                f"the data directory {self.path} belongs to cluster {found.cluster_id}, this broker's is {cluster_id}"
            )
        return found

    # Partitions

    def partitions(self) -> list[TopicPartition]:
        found = []
        for name in self.files.names(self.path):
            match = _PARTITION_DIRECTORY.fullmatch(name)
            if match and self.files.is_directory(self.file(name)):
                found.append(TopicPartition(match[1], int(match[2])))
        return found

    def condemned(self) -> list[str]:
        """The directories of deleted partitions that are still there, and of branches that never came to be."""
        names = self.files.names(self.path)
        return [self.file(name) for name in names if name.endswith((DELETE_SUFFIX, STAGED_SUFFIX))]

    def condemn(self, path: str) -> str:
        """Gives a partition's directory the name of a deleted one, so that no start takes it up again."""
        target = self._other_name(path, DELETE_SUFFIX)
        self.files.rename(path, target)
        return target

    def staged_name(self, path: str) -> str:
        """Where a partition's directory may be made before it counts: the next start removes what is there."""
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
            logger.warning("%s is damaged and will be written anew", path)
        return offsets or {}

    def write_offsets(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        self.files.replace(self.file(name), encode_offsets(offsets))

    def take_clean_marker(self) -> bool:
        """Whether the last stop was clean. The marker goes only with `remove_clean_marker`, once recovery is done."""
        return self.files.exists(self.file(CLEAN_SHUTDOWN_MARKER))

    def remove_clean_marker(self) -> None:
        if self.files.exists(self.file(CLEAN_SHUTDOWN_MARKER)):
            self.files.remove(self.file(CLEAN_SHUTDOWN_MARKER))
            self.files.sync_directory(self.path)

    def write_clean_marker(self) -> None:
        self.files.replace(self.file(CLEAN_SHUTDOWN_MARKER), _CLEAN_SHUTDOWN)


def _new_id() -> str:
    return format_uuid(uuid.uuid4().bytes)


def _encode_properties(identity: Identity) -> bytes:
    return (
        f"version={_META_VERSION}\ncluster.id={identity.cluster_id}\n"
        f"node.id={identity.node_id}\ndirectory.id={identity.directory_id}\n"
    ).encode()


def _decode_properties(data: bytes) -> Identity | None:
    lines = [line.strip() for line in data.decode(errors="replace").splitlines()]
    fields = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    try:
        if fields["version"] != _META_VERSION:
            return None
        return Identity(fields["cluster.id"], int(fields["node.id"]), fields.get("directory.id", ""))
    except (KeyError, ValueError):
        return None
