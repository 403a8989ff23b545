"""The metadata log in ZooKeeper, as one broker sees it.

This is the event loop's side: it decides what is done next (read what others appended, append what waits), one thing at
a time, in a thread that waits for ZooKeeper (`zookeeper_store`); it applies what comes of it and calls the listeners.
Appends that arrive while another is under way share the next node. When another broker's came first, everything that
waits was decided on an old image: it is refused, and its makers decide again.

While ZooKeeper cannot be reached, appends wait. The outcome of an append whose answer was lost is determined before
anything else is done. Only if it can never be known, because the log was truncated beyond it meanwhile, it counts as
outrun: the change is decided again on an image that may contain it already.

The local copy, snapshots and truncation have a thread of their own; no append waits for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from kazoo.protocol.states import WatchedEvent

from flowstone.cluster.image.cluster_image import EMPTY_IMAGE, ClusterImage
from flowstone.cluster.image.records import MetadataRecord, UnknownRecord
from flowstone.cluster.image.replay import apply, difference
from flowstone.cluster.logs.local_copy import LocalCopy
from flowstone.cluster.logs.log_listeners import LogListeners
from flowstone.cluster.logs.metadata_log import Outrun, PendingAppend, fail_all
from flowstone.cluster.zookeeper.client import Closed, SessionState, ZooKeeperClient
from flowstone.cluster.zookeeper.loading import load_image
from flowstone.cluster.zookeeper.nodes import Entry
from flowstone.cluster.zookeeper.snapshots import LOG_NODES_KEPT, ZooKeeperSnapshots
from flowstone.cluster.zookeeper.store import End, TooLarge, Truncated, ZooKeeperStore
from flowstone.cluster.zookeeper.upkeep import SNAPSHOT_NODES, Upkeep
from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.ports.clock import Clock, done_within

# How long a broker that stops waits for pending appends when ZooKeeper does not answer.
CLOSE_TIMEOUT_S = 5.0

Answer = TypeVar("Answer")

logger = logging.getLogger(__name__)


class ZooKeeperLog:
    def __init__(
        self,
        client: ZooKeeperClient,
        copy: LocalCopy,
        clock: Clock,
        *,
        snapshot_nodes: int = SNAPSHOT_NODES,
        log_nodes_kept: int = LOG_NODES_KEPT,
    ) -> None:
        self._client, self._copy, self._clock = client, copy, clock
        self._store = ZooKeeperStore(client, clock)
        self._snapshots = ZooKeeperSnapshots(client, clock, log_nodes_kept)
        self._upkeep = Upkeep(copy, self._snapshots, snapshot_nodes)
        self._image = EMPTY_IMAGE
        self._log_end = End(0, 0)  # the end of the log up to which the image is applied
        self.listeners = LogListeners()
        self._waiting: list[PendingAppend] = []
        self._under_way: list[PendingAppend] = []
        self._worker: asyncio.Task[None] | None = None
        self._failure: StorageFault | None = None
        self._is_closed = self._has_ended = False
        # Watches are numbered. A watch that fires means that there is news, unless a later one was set by then.
        self._watches = self._watch_set = self._watch_called = 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metadata-log")
        client.on_state(self._session_changed)

    def load(self) -> ClusterImage:
        """Load the image; waits. Raises StartupError if this broker must not, or cannot, start from what ZooKeeper
        has.
        """
        loaded = load_image(self._client, self._store, self._snapshots, self._copy)
        self._image, self._log_end = loaded.image, loaded.end
        self._upkeep.begin(loaded.image, loaded.nodes, loaded.size_bytes)
        self._stale()
        return self._image

    async def append(self, records: Sequence[MetadataRecord]) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_closed:
            raise StorageFault("the metadata log is closed")
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(PendingAppend(records, committed))
        self._wake()
        await committed

    async def close(self) -> None:
        self._is_closed = True
        finishing = asyncio.ensure_future(self._finish())
        await done_within(self._clock, finishing, CLOSE_TIMEOUT_S)
        finishing.cancel()
        self._end()
        await self._client.release()

    async def _finish(self) -> None:
        while self._worker is not None and (self._waiting or self._under_way):
            await asyncio.wait([self._worker])
        await self._upkeep.finish()

    def abort(self) -> None:
        self._client.drop()
        self._end()

    def _end(self) -> None:
        if self._has_ended:
            return
        self._is_closed = self._has_ended = True
        if self._worker is not None:
            self._worker.cancel()
        self._wait_again()
        for _, committed in self._waiting:
            committed.cancel()
        self._waiting = []
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._upkeep.abort()

    # Choosing the next work

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._stale()

    def _stale(self) -> None:
        self._watch_called = self._watches
        self._wake()

    def _new_watch(self) -> tuple[int, Callable[[WatchedEvent], None]]:
        self._watches += 1
        number = self._watches
        return number, lambda event: self._client.on_loop(self._heard, number)

    def _heard(self, number: int) -> None:
        self._watch_called = max(self._watch_called, number)
        self._wake()

    @property
    def _has_news(self) -> bool:
        return self._watch_called >= self._watch_set

    def _wake(self) -> None:
        if self._worker is None and not self._is_closed and self._failure is None:
            self._worker = asyncio.ensure_future(self._work())

    async def _work(self) -> None:
        """Process appends and changes until none are left. An append's caller may be cancelled, but not the append."""
        try:
            while (self._has_news and not self._is_closed) or self._waiting:
                if self._has_news:
                    await self._read()
                else:
                    await self._write()
        except Closed:
            pass
        except Exception as error:
            # Whatever the error, a mistake of ours included: no caller may be left waiting.
            self._fail(error)
        finally:
            self._worker = None

    async def _in_thread(self, call: Callable[[], Answer]) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    # Reading

    async def _read(self) -> None:
        number, watch = self._new_watch()
        try:
            entries, end = await self._in_thread(partial(self._store.read, self._log_end.offset, watch))
        except Truncated:
            await self._leap()
            return
        for entry in entries:
            self._follow(entry)
        self._log_end, self._watch_set = end, number

    def _follow(self, entry: Entry) -> None:
        self._refuse(Outrun())
        self._advance(entry.records, apply(self._image, entry.records))
        self._upkeep.appended(entry.records, self._image, entry.size_bytes)

    async def _leap(self) -> None:
        """Continue from the snapshot: the log was truncated while this broker was disconnected."""
        found = await self._in_thread(self._snapshots.load)
        if found is None or found[1].next_offset <= self._log_end.offset:
            raise StorageFault(f"ZooKeeper has lost the metadata log from {self._log_end.offset} on")
        image, pointer = found
        logger.warning(
            "metadata changes %d to %d were missed, and are loaded from a snapshot", self._log_end.offset, image.version
        )
        self._refuse(Outrun())
        self._log_end = End(pointer.next_offset, self._log_end.version)
        self._stale()  # the records after the snapshot, and the end's version, are still to be read
        self._advance(difference(self._image, image), image)
        self._upkeep.begin(image, 0, 0)

    # Writing

    async def _write(self) -> None:
        group, self._waiting = self._waiting, []
        self._under_way = group
        together = [record for records, _ in group for record in records]
        number, watch = self._new_watch()
        try:
            appended = await self._in_thread(partial(self._store.append, together, self._log_end, watch))
        except Exception as error:
            self._wait_again()
            if isinstance(error, TooLarge):
                self._refuse(ApiError(ErrorCode.POLICY_VIOLATION, str(error)))
            elif isinstance(error, Truncated):
                await self._leap()
            else:
                raise
            return
        if appended is None:
            self._wait_again()
            await self._read_outrunner()
            return
        self._under_way = []
        self._log_end = appended.end
        if appended.is_watched:
            self._watch_set = number
        for records, committed in group:
            self._advance(records, apply(self._image, records))
            if not committed.done():
                committed.set_result(None)
        self._upkeep.appended(together, self._image, appended.size_bytes, is_own=True)

    def _wait_again(self) -> None:
        self._waiting, self._under_way = self._under_way + self._waiting, []

    async def _read_outrunner(self) -> None:
        before = self._log_end
        await self._read()
        if self._log_end == before:
            raise StorageFault(f"ZooKeeper refuses appends at {before.offset} of the metadata log, yet has none there")

    # Outcomes

    def _advance(self, records: Sequence[MetadataRecord], image: ClusterImage) -> None:
        self._image = image
        self.listeners.committed(records, image)

    def _refuse(self, error: Exception) -> None:
        """Refuse all waiting appends, before the listeners learn of the append that came first, which may contradict
        them.
        """
        refused, self._waiting = self._waiting, []
        if refused:
            self.listeners.refused()
        fail_all(refused, error)

    def _fail(self, error: Exception) -> None:
        self._failure = StorageFault(f"the metadata log in ZooKeeper failed and takes no more changes: {error}")
        if isinstance(error, UnknownRecord):
            logger.error("%s", self._failure)
            self.listeners.failed(self._failure)
        else:
            logger.error("%s", self._failure, exc_info=error)
        unanswered, self._waiting = self._waiting, []
        fail_all(unanswered, self._failure)
