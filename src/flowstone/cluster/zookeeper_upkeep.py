"""What a broker does for the metadata log beside appending to it: the local copy, snapshots, truncation.

In a thread of its own, one thing after the other; nobody waits for it and nothing depends on it being done soon. Who
appends the node with which the log has grown far beyond its last snapshot writes the next one. If it fails, or dies,
the one who appends the next node tries.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from flowstone.cluster.image import EMPTY_IMAGE, ClusterImage
from flowstone.cluster.local_copy import LocalCopy
from flowstone.cluster.records import MetadataRecord
from flowstone.cluster.zookeeper_client import LOST, Closed
from flowstone.cluster.zookeeper_nodes import Pointer
from flowstone.cluster.zookeeper_snapshots import ZooKeeperSnapshots

# A snapshot is due after so many nodes, or bytes that exceed both.
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
        self._is_snapshot_due = False
        self._worker: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metadata-upkeep")

    def begin(self, image: ClusterImage, nodes: int, size_bytes: int) -> None:
        """Goes on from an image; the log has so much since its last snapshot."""
        self._image, self._nodes, self._bytes = image, nodes, size_bytes
        self._unsaved = []
        self._wake()

    def appended(
        self, records: Sequence[MetadataRecord], image: ClusterImage, size_bytes: int, *, is_own: bool = False
    ) -> None:
        self._image = image
        self._unsaved += records
        self._nodes += 1
        self._bytes += size_bytes
        if is_own and self._is_overgrown():
            self._is_snapshot_due = True
        self._wake()

    async def close(self) -> None:
        """Waits for what is begun: the copy is then complete."""
        if self._worker is not None:
            await asyncio.wait([self._worker])

    def abort(self) -> None:
        if self._worker is not None:
            self._worker.cancel()
        self._thread.submit(self._copy.close)
        self._thread.shutdown(wait=False)

    def _is_overgrown(self) -> bool:
        has_grown = self._bytes > max(SNAPSHOT_MIN_BYTES, SNAPSHOT_GROWTH * self._snapshot_bytes)
        return has_grown or self._nodes >= self._snapshot_nodes

    def _wake(self) -> None:
        if self._worker is None:
            self._worker = asyncio.ensure_future(self._work())

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                if self._saved is not self._image:
                    unsaved, self._unsaved, image = self._unsaved, [], self._image
                    await loop.run_in_executor(self._thread, self._copy.save, unsaved, image)
                    self._saved = image
                elif self._is_snapshot_due:
                    self._is_snapshot_due = False
                    nodes, size_bytes = self._nodes, self._bytes
                    pointer = await loop.run_in_executor(self._thread, self._write_snapshot, self._image)
                    self._nodes -= nodes
                    self._bytes -= size_bytes
                    self._snapshot_bytes = pointer.size_bytes
                else:
                    return
        except (Closed, *LOST) as error:
            logger.info("the metadata log's snapshot is put off: %r", error)
        except Exception:
            logger.exception("the upkeep of the metadata log failed, and is tried again")
        finally:
            self._worker = None

    def _write_snapshot(self, image: ClusterImage) -> Pointer:
        """The one that counts now, ours or another broker's."""
        pointer = self._snapshots.write(image)
        if pointer is not None:
            self._snapshots.truncate(pointer)
            return pointer
        newer = self._snapshots.pointer()
        assert newer is not None
        return newer
