"""Writes a broker's own metadata into an empty ZooKeeper at an operator's request. Blocks the caller.

Two occasions: a single broker grows into a cluster, and a cluster's ZooKeeper has lost its data. In both the image goes
in as the first snapshot, and the log goes on after it as if nothing had happened. The brokers it names are not members
yet: those that come join, the others are fenced by the controller.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.logs.local_copy import LocalCopy
from flowstone.cluster.zookeeper.client import LOST, ZooKeeperClient
from flowstone.cluster.zookeeper.snapshots import ZooKeeperSnapshots
from flowstone.cluster.zookeeper.store import ZooKeeperStore
from flowstone.errors import StartupError
from flowstone.ports.clock import Clock

SESSION_TIMEOUT_S = 10.0


def found_from_file_home(connect: str, copy: LocalCopy, clock: Clock) -> ClusterImage:
    """Make a stopped single broker's metadata its cluster's. Raises StartupError if there is a cluster already."""
    if copy.is_marked:
        raise StartupError(f"{copy.path} is the copy of a cluster's metadata, not the metadata of a single broker")
    return _found(connect, copy, clock)


def restore_from_local_copy(connect: str, copy: LocalCopy, clock: Clock) -> ClusterImage:
    """Restore the metadata in ZooKeeper from a stopped broker's copy. Raises StartupError if that is not possible.

    The copy has what its broker had learned. Later decisions, which only other brokers had learned, are lost: restore
    from the newest copy.
    """
    if not copy.is_marked:
        raise StartupError(f"{copy.path} is the metadata of a single broker, not the copy of a cluster's metadata")
    return _found(connect, copy, clock)


def _found(connect: str, copy: LocalCopy, clock: Clock) -> ClusterImage:
    image = copy.load()
    try:
        if not image.cluster_id:
            raise StartupError(f"{copy.path} contains no cluster: there is nothing to write into ZooKeeper")
        with _started(connect) as client:
            store = ZooKeeperStore(client, clock)
            store.prepare()
            if store.cluster_id() or store.end().offset:
                raise StartupError(f"ZooKeeper at {connect} already holds a cluster's metadata")
            ZooKeeperSnapshots(client, clock).found(image)
        copy.mark()
    except OSError as error:
        raise StartupError(f"{copy.path} cannot be marked as a copy: {error}") from error
    finally:
        copy.close()
    return image


@contextmanager
def _started(connect: str) -> Iterator[ZooKeeperClient]:
    client = ZooKeeperClient(connect, SESSION_TIMEOUT_S)
    client.start()
    try:
        yield client
    except LOST as error:
        raise StartupError(
            f"the connection to ZooKeeper at {connect} was lost: run the command again; if it reports that a "
            "cluster's metadata is already there, the change was made"
        ) from error
    finally:
        client.close()
