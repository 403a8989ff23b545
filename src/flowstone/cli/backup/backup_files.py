"""The files of a backup, and the check that it is complete. Knows no broker.

    DIR/backup.json             the manifest: topics, their settings, groups' offsets, each file's size and checksum
    DIR/<topic>-<partition>/    the partition as a broker keeps it: segments, indexes, leader epochs, producers

The manifest is written last and atomically: a directory without one is an incomplete backup. The files have Kafka's
formats, so `flowstone log dump` and `verify` and Kafka's tools can read them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from flowstone.cli.common.errors import CommandError
from flowstone.cli.common.progress import Advance, no_progress
from flowstone.ports.system_files import SystemFiles
from flowstone.types import TopicPartition

MANIFEST = "backup.json"
FORMAT_VERSION = 1
READ_BYTES = 1 << 20


@dataclass(frozen=True)
class BackupFile:
    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class BackupPartition:
    """A partition's records from `log_start_offset` to `end_offset`, exclusive. No files: it was never written to."""

    partition: int
    log_start_offset: int
    end_offset: int
    files: list[BackupFile] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True)
class BackupOffset:
    partition: int
    offset: int


@dataclass(frozen=True)
class BackupGroup:
    """The offsets that a consumer group has committed in a topic."""

    group_id: str
    offsets: list[BackupOffset]


@dataclass(frozen=True)
class BackupTopic:
    name: str
    settings: dict[str, str]
    partitions: list[BackupPartition]
    groups: list[BackupGroup] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        return sum(partition.size_bytes for partition in self.partitions)


@dataclass(frozen=True)
class Backup:
    cluster_id: str
    created_ms: int
    topics: list[BackupTopic]

    def topic(self, name: str) -> BackupTopic:
        found = next((topic for topic in self.topics if topic.name == name), None)
        if found is None:
            held = ", ".join(topic.name for topic in self.topics)
            raise CommandError(f"the backup holds no topic {name}, but {held}")
        return found


def write_manifest(directory: str, backup: Backup) -> None:
    """Write the manifest; it is durable when the function returns."""
    document = {"version": FORMAT_VERSION, **asdict(backup)}
    SystemFiles().replace(f"{directory}/{MANIFEST}", json.dumps(document, indent=1).encode())


def read_manifest(directory: str) -> Backup:
    path = f"{directory}/{MANIFEST}"
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except FileNotFoundError:
        raise CommandError(f"{directory} is not a backup, or an incomplete one: {MANIFEST} is missing") from None
    except (OSError, ValueError) as error:
        raise CommandError(f"{path} cannot be read: {error}") from None
    if not isinstance(document, dict) or document.get("version") != FORMAT_VERSION:
        raise CommandError(f"{path} is not a backup of version {FORMAT_VERSION}: use the release that made it")
    try:
        topics = [_read_topic(topic) for topic in document["topics"]]
        return Backup(document["cluster_id"], document["created_ms"], topics)
    except (LookupError, TypeError, ValueError) as error:
        raise CommandError(f"{path} is damaged: {error!r}") from None


def _read_topic(document: dict[str, Any]) -> BackupTopic:
    partitions = [
        BackupPartition(
            int(each["partition"]),
            int(each["log_start_offset"]),
            int(each["end_offset"]),
            [BackupFile(**file) for file in each["files"]],
        )
        for each in document["partitions"]
    ]
    if [each.partition for each in partitions] != list(range(len(partitions))):
        raise ValueError(f"partitions of {document['name']} are missing")
    names = [file.name for each in partitions for file in each.files]
    if any(os.path.basename(name) != name or name in ("", ".", "..") for name in names):
        raise ValueError(f"a file of {document['name']} is not where the manifest says")
    groups = [
        BackupGroup(
            str(each["group_id"]), [BackupOffset(int(at["partition"]), int(at["offset"])) for at in each["offsets"]]
        )
        for each in document.get("groups", ())  # not in the first backups
    ]
    return BackupTopic(document["name"], dict(document["settings"]), partitions, groups)


def list_files(directory: str) -> list[BackupFile]:
    """Return the files in a partition's directory with sizes and checksums."""
    names = sorted(os.listdir(directory))
    return [BackupFile(name, os.path.getsize(f"{directory}/{name}"), digest(f"{directory}/{name}")) for name in names]


def digest(path: str) -> str:
    total = hashlib.sha256()
    for data in read_pieces(path):
        total.update(data)
    return total.hexdigest()


def read_pieces(path: str) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while data := file.read(READ_BYTES):
            yield data


def partition_directory(directory: str, topic: str, partition: int) -> str:
    return f"{directory}/{TopicPartition(topic, partition)}"


def copy_checked(source: str, target: str, expected: BackupFile, advance: Advance = no_progress) -> None:
    """Copy a file of a backup durably, reading it once. Raises CommandError if its checksum is wrong."""
    total, size_bytes = hashlib.sha256(), 0
    try:
        with open(target, "xb") as file:
            for data in read_pieces(source):
                file.write(data)
                total.update(data)
                size_bytes += len(data)
                advance(len(data))
            file.flush()
            os.fdatasync(file.fileno())
    except FileNotFoundError:
        raise CommandError(f"{source} is missing: the backup is damaged") from None
    if (size_bytes, total.hexdigest()) != (expected.size_bytes, expected.sha256):
        raise CommandError(f"{source} differs from what was backed up: its checksum does not match")
