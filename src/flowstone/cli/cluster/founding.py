"""`flowstone cluster found` and `restore-metadata`: write a broker's own metadata into an empty ZooKeeper.

Both are for a machine whose broker is stopped, and work on its data directory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from flowstone.cli.common.json_output import JsonOutput, Yes, confirm, print_document
from flowstone.cli.common.text import counted
from flowstone.cli.up.settings import check_zookeeper
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.logs.local_copy import LocalCopy
from flowstone.errors import StartupError
from flowstone.log.directories.opened_directories import check_unused
from flowstone.ports.clock import Clock, SystemClock
from flowstone.ports.system_files import SystemFiles

Data = Annotated[
    str,
    typer.Option("--data", metavar="DIR", help="The stopped broker's data directory, or several separated by commas."),
]
ZooKeeper = Annotated[
    str, typer.Option("--zookeeper", metavar="HOST:PORT", help="The servers of the ensemble, separated by commas.")
]

Write = Callable[[str, LocalCopy, Clock], ClusterImage]


def found(data: Data, zookeeper: ZooKeeper, json_output: JsonOutput = False) -> None:
    """Make a stopped single broker the first of a cluster: copy its metadata into an empty ZooKeeper."""
    from flowstone.cluster.zookeeper.founding import found_from_file_home

    image = _write(found_from_file_home, data, zookeeper)
    node_id = min(image.brokers, default=1)
    if json_output:
        print_document({"cluster_id": image.cluster_id, "topics": len(image.topics), "node_id": node_id})
        return
    print(f"founded cluster {image.cluster_id} with {counted(len(image.topics), 'topic')}")
    print(f"start this broker with: flowstone up --data {data} --zookeeper {zookeeper} --node-id {node_id}")


def restore_metadata(data: Data, zookeeper: ZooKeeper, yes: Yes = False, json_output: JsonOutput = False) -> None:
    """Restore the cluster's metadata in an empty ZooKeeper from the copy of a stopped broker."""
    from flowstone.cluster.zookeeper.founding import restore_from_local_copy

    if not yes:
        copy = _open_copy(data)
        version = copy.load().version
        copy.close()
        confirm(
            f"this copy ends at change {version} of the cluster's metadata, and later changes would be lost: "
            "restore from the broker with the newest copy"
        )
    image = _write(restore_from_local_copy, data, zookeeper)
    if json_output:
        print_document({"cluster_id": image.cluster_id, "topics": len(image.topics), "change": image.version})
        return
    topics = counted(len(image.topics), "topic")
    print(f"restored cluster {image.cluster_id} with {topics}, up to change {image.version}")


def _write(write: Write, data: str, zookeeper: str) -> ClusterImage:
    check_zookeeper(zookeeper)
    return write(zookeeper, _open_copy(data), SystemClock())


def _open_copy(data: str) -> LocalCopy:
    """Open the data directory of a stopped broker. Raises StartupError if a broker runs there, or none ever has."""
    files, directories = SystemFiles(), [each.strip() for each in data.split(",")]
    for directory in directories:
        if not files.exists(directory):
            raise StartupError(f"there is no directory {directory}: name the broker's data directory with --data")
    check_unused(files, directories)
    return LocalCopy(files, directories, SystemClock())
