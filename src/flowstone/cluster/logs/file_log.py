"""The metadata log in a file, for a single broker; Kafka's log dump tool can read it.

Every write is one record batch, followed by a sync before anybody hears of it; appends that arrive meanwhile share the
next batch. With several log directories the file is in each of them (`metadata_copies`). So a write that a crash cut
short can only be the last batch of the file, and is cut off at start. A bad batch with a good one after it is damage:
the broker refuses to start rather than forget topics. A failed write or sync fails the log for good, for a second sync
may falsely succeed. A write on a full disk is undone instead, and refused with all that wait behind it: those changes
were decided on the one that failed.

When the file has grown far beyond what its image needs, it is replaced by the image's snapshot. The snapshot's last
record keeps the offset of the last record it stands for, so offsets go on as if nothing had happened.

Blocking calls run in a thread of the log's own; everything else runs on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from flowstone.cluster.image.cluster_image import EMPTY_IMAGE, ClusterImage
from flowstone.cluster.image.records import MetadataRecord, TopicDeleted
from flowstone.cluster.image.replay import apply
from flowstone.cluster.logs.log_batches import encode_batch, encode_snapshot
from flowstone.cluster.logs.log_listeners import LogListeners
from flowstone.cluster.logs.metadata_copies import MetadataCopies, OutOfSpaceError
from flowstone.cluster.logs.metadata_log import PendingAppend, fail_all
from flowstone.errors import ApiError, ErrorCode, StartupError, StorageFault
from flowstone.ports.clock import Clock

# A file is replaced by its snapshot once it exceeds both.
COMPACTION_MIN_BYTES = 8 << 20
COMPACTION_GROWTH = 4

_log = logging.getLogger(__name__)


class FileLog:
    def __init__(
        self, copies: MetadataCopies, clock: Clock, *, compaction_min_bytes: int = COMPACTION_MIN_BYTES
    ) -> None:
        self._copies = copies
        self._clock = clock
        self._compaction_min_bytes = compaction_min_bytes
        self._snapshot_bytes = 0
        self._image = EMPTY_IMAGE
        # The ids of the topics of whose deletion the file tells: since its last snapshot.
        self.deleted_topic_ids: frozenset[bytes] = frozenset()
        self.listeners = LogListeners()
        self._waiting: list[PendingAppend] = []
        self._writer: asyncio.Task[None] | None = None
        self._failure: StorageFault | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metadata-log")

    def load(self) -> ClusterImage:
        """Return the image that the file's records produce. Raises StartupError if the file is damaged or of another
        release.
        """
        first_offset, records = self._copies.load()
        try:
            self._image = apply(ClusterImage(version=first_offset - 1), records)
        except StorageFault as fault:
            raise StartupError(f"the metadata log {self._copies.path} cannot be read: {fault}") from fault
        self.deleted_topic_ids = frozenset(each.topic_id for each in records if isinstance(each, TopicDeleted))
        return self._image

    async def append(self, records: Sequence[MetadataRecord]) -> None:
        if self._failure is not None:
            raise self._failure
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(PendingAppend(records, committed))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_waiting())
        await committed

    async def close(self) -> None:
        if self._writer is not None:
            await self._writer
        self._thread.shutdown()
        self._copies.close()

    def abort(self) -> None:
        if self._writer is not None:
            self._writer.cancel()
        self._thread.shutdown(cancel_futures=True)  # waits for a write in progress
        self._copies.close()

    async def _write_waiting(self) -> None:
        """Write while there is something to write. An append's caller may be cancelled, but not the append."""
        loop = asyncio.get_running_loop()
        group: list[PendingAppend] = []
        try:
            while self._waiting:
                group, self._waiting = self._waiting, []
                together = [record for records, _ in group for record in records]
                batch = encode_batch(together, self._image.version + 1, self._clock.time_ms())
                await loop.run_in_executor(self._thread, self._copies.write, batch)
                for records, committed in group:
                    self._commit(records, committed)
                group = []
                if self._is_overgrown():
                    await loop.run_in_executor(self._thread, self._compact, self._image)
        except OutOfSpaceError as full:
            self._refuse(full, group + self._waiting)
        except Exception as error:
            # Whatever the error, a mistake of ours included: no caller may be left waiting.
            self._fail(error, group + self._waiting)
        finally:
            self._writer = None

    def _commit(self, records: Sequence[MetadataRecord], committed: asyncio.Future[None]) -> None:
        image = self._image = apply(self._image, records)
        self.listeners.committed(records, image)
        if not committed.done():
            committed.set_result(None)

    def _is_overgrown(self) -> bool:
        return self._copies.size_bytes > max(self._compaction_min_bytes, COMPACTION_GROWTH * self._snapshot_bytes)

    def _compact(self, image: ClusterImage) -> None:
        data = encode_snapshot(image, self._clock.time_ms())
        try:
            self._copies.replace(data)
        except OutOfSpaceError as full:
            _log.warning("%s: no disk space for a snapshot, so the log keeps growing: %s", self._copies.path, full)
        self._snapshot_bytes = self._copies.size_bytes  # the next snapshot comes when the file has doubled

    def _refuse(self, full: OutOfSpaceError, unanswered: list[PendingAppend]) -> None:
        _log.warning("%s: a change was refused: %s", self._copies.path, full)
        self._waiting = []
        self.listeners.refused()
        fail_all(unanswered, ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"the disk is full: {full}"))

    def _fail(self, error: Exception, unanswered: list[PendingAppend]) -> None:
        self._failure = StorageFault(f"the metadata log {self._copies.path} failed and takes no more changes: {error}")
        _log.error("%s", self._failure, exc_info=error)
        self._waiting = []
        fail_all(unanswered, self._failure)
