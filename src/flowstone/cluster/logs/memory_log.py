"""The metadata log in memory: for tests, and for brokers of one process that form one cluster (`memory_ensemble`).

`SharedLog` is what all of them agree on, behind a lock, for each broker may have a thread of its own. A `MemoryLog` is
one broker's view of it: it belongs to that broker's event loop, and sees every append in the log's order, its own and
others'. An append is a compare-and-set on the log's end.

By default an append takes effect at once and every broker of the same loop has seen it before it returns. A simulator
gives each view a `deliver` of its own, which calls what it is given later, in the order it was given: once for the way
of an append to the log, once for the way of what was appended to a view. A view that is cut off sees nothing, and its
appends wait; one that was on its way may have come through all the same, which it learns when it is reachable again.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from flowstone.cluster.image.cluster_image import EMPTY_IMAGE, NO_VERSION, ClusterImage
from flowstone.cluster.image.records import MetadataRecord
from flowstone.cluster.image.replay import apply
from flowstone.cluster.logs.log_listeners import LogListeners
from flowstone.cluster.logs.metadata_log import Outrun
from flowstone.errors import StorageFault

# Calls the callback now or later, on the same event loop, one after the other.
Deliver = Callable[[Callable[[], None]], None]


def straight(callback: Callable[[], None]) -> None:
    callback()


class _Append:
    def __init__(self, maker: MemoryLog, records: Sequence[MetadataRecord], base_version: int) -> None:
        self.maker, self.records, self.base_version = maker, records, base_version
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_refused = False
        self.image = EMPTY_IMAGE  # after the append, once it is committed

    def settle(self, error: Exception | None = None) -> None:
        if self.settled.done():  # the log was aborted
            return
        if error is None:
            self.settled.set_result(None)
        else:
            self.settled.set_exception(error)


class SharedLog:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._image = EMPTY_IMAGE
        self._views: list[MemoryLog] = []

    def attach(self, view: MemoryLog) -> ClusterImage:
        """Put every append that the image does not have into the view's inbox, from now on."""
        with self._lock:
            self._views.append(view)
            return self._image

    def detach(self, view: MemoryLog) -> None:
        with self._lock:
            if view in self._views:
                self._views.remove(view)

    def version(self) -> int:
        with self._lock:
            return self._image.version

    def commit(self, append: _Append) -> bool:
        """Append, unless another append came first; return whether it was done."""
        with self._lock:
            if self._image.version != append.base_version:
                return False
            image = self._image = append.image = apply(self._image, append.records)
            views = list(self._views)
            for view in views:
                view.inbox.append(append)
        for view in views:
            view.notify(image.version)
        return True


class MemoryLog:
    def __init__(
        self,
        shared: SharedLog | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        deliver: Deliver = straight,
    ) -> None:
        """Create a view. Without a `loop` all brokers are in one. Without a shared log the view has one of its own."""
        self._shared = shared or SharedLog()
        self._loop, self._deliver = loop, deliver
        self._image = EMPTY_IMAGE
        self._proposed_version = NO_VERSION  # includes this broker's own appends that are not committed
        self._under_way: deque[_Append] = deque()
        self.listeners = LogListeners()
        self._is_loaded = self._is_closed = self._is_cut = False
        self.inbox: deque[_Append] = deque()  # appends of the shared log that this view has not seen yet

    def load(self) -> ClusterImage:
        if not self._is_loaded:
            self._is_loaded = True
            self._image = self._shared.attach(self)
            self._proposed_version = self._image.version
        return self._image

    async def append(self, records: Sequence[MetadataRecord]) -> None:
        if self._is_closed:
            raise StorageFault("the metadata log is closed")
        append = _Append(self, records, self._proposed_version)
        self._proposed_version += len(records)
        self._under_way.append(append)
        self._deliver(partial(self._submit, append))
        await asyncio.shield(append.settled)  # the waiting caller may be cancelled, but not the append

    async def close(self) -> None:
        while self._under_way and not self._is_cut:
            await asyncio.wait([self._under_way[-1].settled])
        self.abort()

    def abort(self) -> None:
        self._is_closed = True
        self._shared.detach(self)
        for append in self._under_way:
            append.settled.cancel()
        self._under_way.clear()

    # Being unreachable, on the broker's loop

    def cut(self) -> None:
        self._is_cut = True

    def heal(self) -> None:
        self._is_cut = False
        self._follow(self._shared.version())
        for append in list(self._under_way):
            self._submit(append)

    # To the shared log and back

    def _submit(self, append: _Append) -> None:
        if append.is_refused or append.image.version != NO_VERSION or self._is_cut or self._is_closed:
            return
        try:
            is_committed = self._shared.commit(append)
        except StorageFault as fault:  # a mistake of ours: the records do not fit the image they were decided on
            self._refuse(fault)
            return
        if not is_committed:
            self._follow(self._shared.version())
            assert append.is_refused, "whatever came first was another broker's"

    def notify(self, version: int) -> None:
        """Record that the inbox has everything up to `version`. May be called from any thread."""
        self.on_loop(partial(self._deliver, partial(self._follow, version)))

    def on_loop(self, callback: Callable[[], None]) -> None:
        """Call back on the broker's loop: at once if this is it. May be called from any thread."""
        if self._loop is None or self._loop is _running_loop():
            callback()
        else:
            with suppress(RuntimeError):  # the loop is closed: the broker is gone
                self._loop.call_soon_threadsafe(callback)

    def _follow(self, version: int) -> None:
        while self.inbox and self.inbox[0].image.version <= version and not self._is_cut and not self._is_closed:
            append = self.inbox.popleft()
            if append.maker is self:
                assert self._under_way[0] is append
                self._under_way.popleft()
            else:
                self._refuse(Outrun())
            self._image = append.image
            self._proposed_version = max(self._proposed_version, append.image.version)
            self.listeners.committed(append.records, append.image)
            if append.maker is self:
                append.settle()

    def _refuse(self, error: Exception) -> None:
        """Refuse pending appends: they were decided on an image that is no longer the newest."""
        refused, self._under_way = self._under_way, deque()
        self._proposed_version = self._image.version
        if refused:
            self.listeners.refused()
        for append in refused:
            append.is_refused = True
            append.settle(error)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
