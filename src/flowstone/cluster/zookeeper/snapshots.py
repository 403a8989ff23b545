"""Snapshots of the image in ZooKeeper, and the truncation of the log that they allow. Every call waits: for threads.

A snapshot's chunks are written first; it is current once the pointer names it. Truncation removes the log's nodes
before the current snapshot, in ascending order, and leaves a margin, so that a broker that reads a little late finds
its next node.
"""

from __future__ import annotations

from contextlib import suppress

from kazoo.exceptions import BadVersionError, NoNodeError

from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.ids import id_text, random_id
from flowstone.cluster.logs.log_batches import encode_snapshot
from flowstone.cluster.zookeeper.client import ZooKeeperClient, succeeded
from flowstone.cluster.zookeeper.nodes import (
    CHUNKS,
    CLUSTER,
    LOG,
    SNAPSHOTS,
    Pointer,
    chunk_offset,
    decode_pointer,
    decode_snapshot,
    encode_end,
    encode_pointer,
    offset_name,
    split,
)
from flowstone.errors import StartupError
from flowstone.ports.clock import Clock

# How many nodes below the snapshot truncation leaves.
LOG_NODES_KEPT = 500


class ZooKeeperSnapshots:
    def __init__(self, client: ZooKeeperClient, clock: Clock, log_nodes_kept: int = LOG_NODES_KEPT) -> None:
        self._client, self._clock, self._log_nodes_kept = client, clock, log_nodes_kept

    def load(self) -> tuple[ClusterImage, Pointer] | None:
        """Return the current snapshot and its pointer; None if there is none yet."""
        while True:
            pointer = self.pointer()
            if pointer is None:
                return None
            names = [f"{SNAPSHOTS}/{pointer.name}/{number}" for number in range(pointer.chunk_count)]
            with suppress(NoNodeError):  # there is a newer one by now
                return decode_snapshot(pointer, b"".join(self._client.get_all(names))), pointer

    def pointer(self) -> Pointer | None:
        return self._read_pointer()[0]

    def write(self, image: ClusterImage) -> Pointer | None:
        """Write a snapshot; return None if another broker's came first. Raises one of `LOST`; the next write cleans
        up.
        """
        before, version = self._read_pointer()
        if before is not None and before.next_offset > image.version:
            return None
        pointer = self._write_chunks(image)
        try:
            self._client.wait(
                self._client.kazoo.set_async(self._client.path(SNAPSHOTS), encode_pointer(pointer), version)
            )
        except BadVersionError:
            return None
        return pointer

    def truncate(self, pointer: Pointer) -> None:
        """Remove what the snapshot has made obsolete. Raises one of `LOST`; the next truncation continues."""
        log = sorted(name for name in filter(str.isdigit, self._names(LOG)) if int(name) < pointer.next_offset)
        superfluous = log[: -self._log_nodes_kept]
        if superfluous:
            start = int(log[len(superfluous)])
            self._client.delete_all(f"{LOG}/{name}" for name in superfluous)
            # Chunks of an append below the log's start: it was truncated, or was never made and never will be.
            self._client.delete_all(f"{CHUNKS}/{name}" for name in self._names(CHUNKS) if chunk_offset(name) < start)
        for name in self._names(SNAPSHOTS):
            if name < pointer.name:
                chunks = [f"{SNAPSHOTS}/{name}/{chunk}" for chunk in self._names(f"{SNAPSHOTS}/{name}")]
                self._client.delete_all([*chunks, f"{SNAPSHOTS}/{name}"])

    def found(self, image: ClusterImage) -> None:
        """Make an image the beginning of the log. Raises StartupError if ZooKeeper has a log already, or one of
        `LOST`.
        """
        pointer = self._write_chunks(image)
        transaction = self._client.kazoo.transaction()
        transaction.set_data(self._client.path(LOG), encode_end(pointer.next_offset), 0)
        transaction.set_data(self._client.path(SNAPSHOTS), encode_pointer(pointer), 0)
        transaction.create(self._client.path(CLUSTER), image.cluster_id.encode())
        if not succeeded(self._client.wait(transaction.commit_async())):
            raise StartupError(f"ZooKeeper at {self._client.connect} already holds a cluster's metadata")

    def _write_chunks(self, image: ClusterImage) -> Pointer:
        data = encode_snapshot(image, self._clock.time_ms())
        chunks = split(data)
        name = f"{offset_name(image.version + 1)}-{id_text(random_id())}"
        self._client.create(f"{SNAPSHOTS}/{name}", b"")
        for number, chunk in enumerate(chunks):
            self._client.create(f"{SNAPSHOTS}/{name}/{number}", chunk)
        return Pointer(name, len(chunks), image.version + 1, len(data))

    def _read_pointer(self) -> tuple[Pointer | None, int]:
        data, stat = self._client.get(SNAPSHOTS)
        return decode_pointer(data), stat.version

    def _names(self, node: str) -> list[str]:
        try:
            return self._client.children(node)
        except NoNodeError:  # another broker truncates at the same time
            return []
