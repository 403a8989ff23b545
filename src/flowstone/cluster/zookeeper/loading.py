"""Loads the metadata that ZooKeeper has: from the broker's own copy, or a snapshot, and what was appended since.

Also decides whether the broker may start. A ZooKeeper that has less than the broker's copy has lost what the cluster
agreed on: a broker that continued from there would forget topics, and delete its partitions of them. The start fails,
and says what an operator can do; it fails too if ZooKeeper has another cluster. Waits for ZooKeeper and for the disk.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from flowstone.cluster.image.cluster_image import EMPTY_IMAGE, ClusterImage
from flowstone.cluster.image.records import UnknownRecord
from flowstone.cluster.image.replay import apply
from flowstone.cluster.logs.local_copy import LocalCopy
from flowstone.cluster.zookeeper.client import ZooKeeperClient
from flowstone.cluster.zookeeper.snapshots import ZooKeeperSnapshots
from flowstone.cluster.zookeeper.store import End, Truncated, ZooKeeperStore
from flowstone.errors import StartupError, StorageFault

logger = logging.getLogger(__name__)


class Loaded(NamedTuple):
    image: ClusterImage
    end: End
    # Sizes of the log since its last snapshot, or since the copy, whichever the image was loaded from.
    nodes: int
    size_bytes: int


def load_image(
    client: ZooKeeperClient, store: ZooKeeperStore, snapshots: ZooKeeperSnapshots, copy: LocalCopy
) -> Loaded:
    """Start the client and load the image. Raises StartupError if the broker must not, or cannot, start from it."""
    local, damage = _load_copy(copy)
    try:
        client.start()
        store.prepare()
        cluster_id = store.cluster_id()
        if damage is not None and not cluster_id:
            raise damage
        _check_cluster(client.connect, cluster_id, store.end(), local, copy)
        copy.mark()
        return _load(store, snapshots, local)
    except (StorageFault, OSError) as error:
        _give_up(client, copy)
        raise StartupError(f"the metadata log in ZooKeeper at {client.connect} cannot be used: {error}") from error
    except BaseException:
        _give_up(client, copy)
        raise


def _give_up(client: ZooKeeperClient, copy: LocalCopy) -> None:
    client.drop()
    copy.close()


def _check_cluster(connect: str, cluster_id: str, end: End, local: ClusterImage, copy: LocalCopy) -> None:
    if not local.cluster_id:
        return
    if not cluster_id:
        command, what = ("restore-metadata", "has lost") if copy.is_marked else ("found", "is empty: it does not have")
        raise StartupError(
            f"ZooKeeper at {connect} {what} cluster {local.cluster_id}, which this broker's {copy.path} knows; "
            f"if no other broker has a newer copy, `flowstone cluster {command}` writes this one into ZooKeeper"
        )
    if cluster_id != local.cluster_id:
        raise StartupError(
            f"ZooKeeper at {connect} has cluster {cluster_id}, this broker's {copy.path} belongs to cluster "
            f"{local.cluster_id}; one of the two addresses is wrong"
        )
    if end.offset <= local.version:
        raise StartupError(
            f"ZooKeeper at {connect} has lost changes of cluster {cluster_id}: its metadata log ends at {end.offset}, "
            f"this broker's {copy.path} ends at {local.version + 1}; restore ZooKeeper's newest data, or empty "
            "ZooKeeper and use `flowstone cluster restore-metadata` on the broker with the newest copy"
        )


def _load_copy(copy: LocalCopy) -> tuple[ClusterImage, StartupError | None]:
    try:
        return copy.load(), None
    except StartupError as damage:
        if isinstance(damage.__cause__, UnknownRecord):
            raise
        # Of no consequence while ZooKeeper has everything; the copy is written anew then.
        logger.warning("%s", damage)
        return EMPTY_IMAGE, damage


def _load(store: ZooKeeperStore, snapshots: ZooKeeperSnapshots, local: ClusterImage) -> Loaded:
    image = local
    while True:
        if image.version < 0:
            found = snapshots.load()
            image = EMPTY_IMAGE if found is None else found[0]
        try:
            entries, end = store.read(image.version + 1, None)
        except Truncated:  # the copy, or even the snapshot, is too old by now
            image = EMPTY_IMAGE
            continue
        for entry in entries:
            image = apply(image, entry.records)
        return Loaded(image, end, len(entries), sum(entry.size_bytes for entry in entries))
