"""A broker's background work for the metadata log: the local copy, snapshots, truncation.

Each in a thread of its own, for one waits for the disk and the other for ZooKeeper. Nothing waits for them, or depends
on their being done soon. The broker that appends the node with which the log has grown far beyond its last snapshot
writes the next one. If it fails, or dies, the broker that appends the next node tries.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from flowstone.cluster.image.cluster_image import EMPTY_IMAGE, ClusterImage
from flowstone.cluster.image.records import MetadataRecord
from flowstone.cluster.logs.local_copy import LocalCopy
from flowstone.cluster.zookeeper.client import LOST, Closed
from flowstone.cluster.zookeeper.nodes import Pointer
from flowstone.cluster.zookeeper.snapshots import ZooKeeperSnapshots

# A snapshot is due after this many nodes, or after bytes that exceed both limits.
SNAPSHOT_NODES = 1000
SNAPSHOT_MIN_BYTES = 8 << 20
SNAPSHOT_GROWTH = 4

logger = logging.getLogger(__name__)


class Upkeep:
    def __init__(self, copy: LocalCopy, snapshots: ZooKeeperSnapshots, snapshot_nodes: int) -> None:
        self._copy, self._snapshots, self._snapshot_nodes = copy, snapshots, snapshot_nodes
        self._image = self._saved = EMPTY_IMAGE
        self._unsaved: list[MetadataRecord] = []
        self._nodes = self._bytes = self._snapshot_bytes = 0  # of the log, since its last snapshot; of that
        self._saving: asyncio.Task[None] | None = None
        self._snapshotting: asyncio.Task[None] | None = None
        self._disk_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metadata-copy")
        self._zookeeper_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metadata-snapshot")

    def begin(self, image: ClusterImage, nodes: int, size_bytes: int) -> None:
        """Start from an image; the log has this many nodes and bytes since its last snapshot."""
        self._unsaved = []
        self._nodes, self._bytes = nodes, size_bytes
        self._save(image)

    def appended(
        self, records: Sequence[MetadataRecord], image: ClusterImage, size_bytes: int, *, is_own: bool = False
    ) -> None:
        self._unsaved += records
        self._nodes += 1
        self._bytes += size_bytes
        self._save(image)
        if is_own and self._snapshotting is None and self._is_overgrown():
            self._snapshotting = asyncio.ensure_future(self._snapshot())

    async def finish(self) -> None:
        """Wait until the copy is complete."""
        if self._saving is not None:
            await asyncio.wait([self._saving])

    def abort(self) -> None:
        """Stop. The copy is not written any more when this returns."""
        for task in (self._saving, self._snapshotting):
            if task is not None:
                task.cancel()
        self._zookeeper_thread.shutdown(wait=False, cancel_futures=True)
        self._disk_thread.shutdown(cancel_futures=True)  # waits for a write in progress
        self._copy.close()

    # The local copy

    def _save(self, image: ClusterImage) -> None:
        self._image = image
        if self._saving is None:
            self._saving = asyncio.ensure_future(self._save_all())

    async def _save_all(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._saved is not self._image:
                unsaved, self._unsaved, image = self._unsaved, [], self._image
                await loop.run_in_executor(self._disk_thread, self._copy.save, unsaved, image)
                self._saved = image
        finally:
            self._saving = None

    # Snapshots

    def _is_overgrown(self) -> bool:
        has_grown = self._bytes > max(SNAPSHOT_MIN_BYTES, SNAPSHOT_GROWTH * self._snapshot_bytes)
        return has_grown or self._nodes >= self._snapshot_nodes

    async def _snapshot(self) -> None:
        nodes, size_bytes = self._nodes, self._bytes
        try:
            pointer = await asyncio.get_running_loop().run_in_executor(
                self._zookeeper_thread, self._write_snapshot, self._image
            )
            self._nodes -= nodes
            self._bytes -= size_bytes
            self._snapshot_bytes = pointer.size_bytes
        except (Closed, *LOST) as error:
            logger.info("the metadata log's snapshot is deferred: %r", error)
        except Exception:
            logger.exception("the metadata log's snapshot failed, and is tried again")
        finally:
            self._snapshotting = None

    def _write_snapshot(self, image: ClusterImage) -> Pointer:
        """Return the current snapshot's pointer, ours or another broker's."""
        pointer = self._snapshots.write(image)
        if pointer is not None:
            self._snapshots.truncate(pointer)
            return pointer
        newer = self._snapshots.pointer()
        assert newer is not None
        return newer
