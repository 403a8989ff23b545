"""`flowstone restore`: restores topics from a backup, with their offsets, into a running broker.

Runs on the machine with the broker's disks: each partition's files are verified and copied into one of its log
directories, under a temporary name, and the broker is asked to add them. If a restore is interrupted, the broker's next
start removes everything that it left.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from flowstone.cli.backup.backup_files import (
    BackupGroup,
    BackupPartition,
    BackupTopic,
    copy_checked,
    partition_directory,
    read_manifest,
)
from flowstone.cli.backup.backup_groups import check_groups, restore_groups
from flowstone.cli.common.broker_pages import BrokerPages, find_pages
from flowstone.cli.common.clients import DEFAULT_BOOTSTRAP, Bootstrap, connect, fetch_metadata
from flowstone.cli.common.errors import CommandError, system_errors
from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.cli.common.progress import Advance, progress_bar
from flowstone.cli.common.text import counted, size_text
from flowstone.cli.topic.alter import read_assignment
from flowstone.config.properties import parse_properties
from flowstone.log.directories.restored_partitions import RESTORE_POINT, RestorePoint, encode_restore_point, staged_path
from flowstone.log.lifecycle.directory_identity import META_PROPERTIES
from flowstone.ports.system_files import SystemFiles

# The broker only renames files that already exist.
ANSWER_TIMEOUT_S = 30.0


def register(app: typer.Typer) -> None:
    app.command("restore")(restore)


def restore(
    source: Annotated[str, typer.Option("--from", metavar="DIR", help="A backup's directory.")],
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC...]", help="Topics to restore; default: all topics of the backup."),
    ] = None,
    new_name: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="The topic's new name; for one topic only.")
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A setting that replaces the one in the backup; repeatable."),
    ] = None,
    with_groups: Annotated[
        bool, typer.Option("--groups", help="Also restore groups' committed offsets; the groups must have no members.")
    ] = False,
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Restore topics from a backup into topics that do not exist yet. Every record keeps its offset."""
    settings = dict(read_assignment("--config", each) for each in config or ())
    backup = read_manifest(source)
    wanted = [backup.topic(name) for name in dict.fromkeys(topics)] if topics else backup.topics
    names = _names(wanted, new_name)
    admin = connect(bootstrap)
    existing = fetch_metadata(admin, bootstrap).topics
    for name in names:
        if name in existing:
            raise CommandError(f"there is a topic {name} already: delete it, or give the restored one a name with --as")
    if with_groups:
        check_groups(admin, bootstrap, wanted)
    pages = find_pages(admin, bootstrap)
    total = sum(topic.size_bytes for topic in wanted)
    with progress_bar("restoring", total) as advance:
        count = _Count(advance)
        for name, topic in zip(names, wanted, strict=True):
            restored = _Restore(pages, source, topic, name, {**topic.settings, **settings}, count)
            restored.run()
            if with_groups:
                restore_groups(admin, bootstrap, topic, name)
            _print_restored(name, topic, topic.groups if with_groups else [], json_output=json_output)


def _names(topics: list[BackupTopic], new_name: str | None) -> list[str]:
    if new_name is None:
        return [topic.name for topic in topics]
    if len(topics) != 1:
        raise CommandError("--as names one topic: say which one of the backup")
    return [new_name]


def _print_restored(name: str, topic: BackupTopic, groups: list[BackupGroup], *, json_output: bool) -> None:
    if json_output:
        print_document(
            {
                "topic": name,
                "source": topic.name,
                "size_bytes": topic.size_bytes,
                "groups": [group.group_id for group in groups],
                "partitions": [
                    {"partition": each.partition, "first_offset": each.log_start_offset, "next_offset": each.end_offset}
                    for each in topic.partitions
                ],
            }
        )
    else:
        told = f", offsets of {counted(len(groups), 'group')}" if groups else ""
        print(f"restored {name}: {counted(len(topic.partitions), 'partition')}, {size_text(topic.size_bytes)}{told}")


class _Count:
    """Number of bytes done, over all files."""

    def __init__(self, advance: Advance) -> None:
        self._advance, self._done = advance, 0

    def add(self, size_bytes: int) -> None:
        self._done += size_bytes
        self._advance(self._done)


class _Restore:
    """The restore of one topic."""

    def __init__(
        self,
        pages: BrokerPages,
        source: str,
        topic: BackupTopic,
        name: str,
        settings: dict[str, str],
        count: _Count,
    ) -> None:
        self._pages, self._source, self._topic = pages, source, topic
        self.name, self._settings, self._count = name, settings, count
        self._token = uuid.uuid4().hex

    def run(self) -> None:
        directories = self._directories()
        with system_errors(self._source), self._staging(directories):
            for partition in self._topic.partitions:
                if partition.files:
                    self._stage(partition, _choose_directory(directories, partition))
            asked = {
                "cluster_id": self._pages.cluster_id,
                "topic": self.name,
                "partitions": len(self._topic.partitions),
                "token": self._token,
                "settings": self._settings,
            }
            self._pages.ask("/restore", asked, ANSWER_TIMEOUT_S)

    def _directories(self) -> list[dict[str, Any]]:
        """Return the broker's log directories. Raises CommandError unless they are on this machine."""
        _status, page = self._pages.ask("/disks")
        found = [each for each in page["directories"] if each["state"] == "online"]
        for each in found:
            if _cluster_of(each["path"]) != self._pages.cluster_id:
                raise CommandError(f"the broker's directory {each['path']} is not here: run this where the broker runs")
        return found

    def _stage(self, partition: BackupPartition, directory: dict[str, Any]) -> None:
        files = SystemFiles()
        path = staged_path(directory["path"], partition.partition, self._token)
        files.new_directory(path)
        origin = partition_directory(self._source, self._topic.name, partition.partition)
        for file in partition.files:
            copy_checked(f"{origin}/{file.name}", f"{path}/{file.name}", file, self._count.add)
        point = RestorePoint(self._topic.name, partition.log_start_offset, partition.end_offset)
        files.replace(f"{path}/{RESTORE_POINT}", encode_restore_point(point))
        directory["partitions"] += 1
        directory["usable_bytes"] -= partition.size_bytes

    @contextmanager
    def _staging(self, directories: list[dict[str, Any]]) -> Iterator[None]:
        """Remove on exit all staged files that the broker has not added."""
        try:
            yield
        finally:
            for directory in directories:
                for partition in self._topic.partitions:
                    shutil.rmtree(staged_path(directory["path"], partition.partition, self._token), ignore_errors=True)


def _choose_directory(directories: list[dict[str, Any]], partition: BackupPartition) -> dict[str, Any]:
    """Return the log directory with the fewest partitions among those with enough free space for it."""
    fitting = [each for each in directories if each["usable_bytes"] - partition.size_bytes > each["floor_bytes"]]
    if not fitting:
        needed = size_text(partition.size_bytes)
        raise CommandError(
            f"no log directory of the broker has enough free space for {needed} more: delete topics first"
        )
    return min(fitting, key=lambda each: int(each["partitions"]))


def _cluster_of(directory: str) -> str | None:
    try:
        with open(f"{directory}/{META_PROPERTIES}", encoding="utf-8") as file:
            return parse_properties(file.read(), file.name).get("cluster.id")
    except FileNotFoundError:
        return None
