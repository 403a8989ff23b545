"""A broker in a thread of this process, with its own event loop.

`pause` blocks that thread: nothing is read, answered or timed, as in a stopped process. `kill` closes the connections
and ends the thread without flushing: when it returns nothing more is written, and the next start recovers. Each start
creates a virtual clock, which includes the time by which the previous one was advanced.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from flowstone.app import App
from flowstone.broker.handlers import create_topics
from flowstone.broker.lag.group_status import GroupStatus
from flowstone.broker.requests.context import RequestContext
from flowstone.broker.requests.session import ClientSession
from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.logs.consensus import Consensus
from flowstone.embedded.faults import Faults
from flowstone.embedded.group_reader import GroupReader
from flowstone.embedded.host import BROKERS_DEFAULT, NotServing, Record, timed_out
from flowstone.embedded.topic_reader import TopicReader, decode
from flowstone.embedded.transaction_reader import TransactionReader, TransactionStatus
from flowstone.errors import ApiError, ErrorCode
from flowstone.ports.clock import SystemClock, VirtualClock
from flowstone.ports.loops import new_event_loop
from flowstone.ports.network import Network
from flowstone.replication.readers import Reader
from flowstone.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
    CreateTopicsResponse,
)

_CREATE_TOPICS = RequestContext(
    api_key=19, api_version=7, correlation_id=0, session=ClientSession("PLAINTEXT", "embedded")
)

T = TypeVar("T")


class Surroundings(Protocol):
    """The parts of a cluster that a broker in it uses. Called on the broker's event loop at each start."""

    def consensus(self, node_id: int, clock: VirtualClock) -> Consensus | None:
        """Return the metadata store, or None if the settings name it."""
        ...

    def network(self, node_id: int) -> Network: ...


class ThreadHost:
    def __init__(self, values: Mapping[str, str], faults: Faults, surroundings: Surroundings | None = None) -> None:
        """Create a host that is not started; `surroundings` is None for a single broker."""
        self._values, self._faults, self._surroundings = values, faults, surroundings
        self.clock = VirtualClock()
        self._thread: threading.Thread | None = None
        self._is_killed = False
        # Not set while the broker is paused.
        self._may_run = threading.Event()
        self._may_run.set()

    @property
    def is_running(self) -> bool:
        return self._thread is not None

    @property
    def http_address(self) -> str | None:
        return self._app.http_address

    def start(self) -> None:
        assert self._thread is None
        serving: Future[None] = Future()
        self._is_killed = False
        self._thread = threading.Thread(target=self._run, args=(serving,), name="flowstone-broker", daemon=True)
        self._thread.start()
        try:
            serving.result()
        except BaseException:
            self._join()
            raise

    def stop(self) -> None:
        if self._thread is not None:
            self._end(partial(_resolve, self._ending, True))

    def kill(self) -> None:
        if self._thread is not None:
            self._is_killed = True
            self._end(self._die)

    def pause(self) -> None:
        self._check_running()
        if self._may_run.is_set():
            self._may_run.clear()
            stands_still = threading.Event()
            self._loop.call_soon_threadsafe(self._stand_still, stands_still)
            stands_still.wait()

    def resume(self) -> None:
        self._check_running()
        self._may_run.set()

    def advance(self, milliseconds: int) -> None:
        self._call(self._advance(milliseconds))

    def create_topic(
        self, name: str, partitions: int, configs: Mapping[str, str], replication_factor: int = BROKERS_DEFAULT
    ) -> None:
        wanted = CreateTopicsRequestTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            configs=[CreateTopicsRequestConfig(name=key, value=value) for key, value in configs.items()],
        )
        request = CreateTopicsRequest(topics=[wanted])
        response = self._call(create_topics.handle(self._app.services, _CREATE_TOPICS, request))
        assert isinstance(response, CreateTopicsResponse)
        (answer,) = response.topics
        if answer.error_code:
            raise ApiError(ErrorCode(answer.error_code), answer.error_message or "")

    def records(self, topic: str, *, read_committed: bool) -> list[Record]:
        return decode(self._call(self._reader.read(topic, _reader(read_committed))))

    def wait_for(self, topic: str, count: int, timeout: float, *, read_committed: bool) -> list[Record]:
        monotonic = SystemClock().monotonic  # clients that write the records use real time
        deadline, offsets = monotonic() + timeout, count
        while True:
            try:
                wait = self._reader.wait(topic, offsets, _reader(read_committed))
                found = self._call(wait, max(deadline - monotonic(), 0))
            except TimeoutError:
                raise timed_out(topic, count, timeout, self._count(topic, read_committed=read_committed)) from None
            records = self.records(topic, read_committed=read_committed)
            if len(records) >= count:
                return records
            offsets = found + count - len(records)  # some offsets have no record, or no longer

    def led_records(self, topic: str, *, read_committed: bool) -> list[Record]:
        """Return the records of the partitions that this broker of a cluster leads."""
        return decode(self._call(self._reader.read_led(topic, _reader(read_committed))))

    def image(self) -> ClusterImage:
        """Return this broker's image of the cluster metadata."""
        self._check_running()
        return self._app.services.metadata.image

    def groups(self) -> dict[str, GroupStatus]:
        return self._call(self._group_reader.read())

    def wait_for_group(self, group_id: str, members: int | None, timeout: float) -> GroupStatus:
        try:
            return self._call(self._group_reader.wait_stable(group_id, members), timeout)
        except TimeoutError:
            wanted = "" if members is None else f" with {members} members"
            state = self._call(self._group_reader.describe(group_id))
            raise TimeoutError(f"group {group_id!r} is not stable{wanted} after {timeout:g} s: {state}") from None

    def transactions(self) -> dict[str, TransactionStatus]:
        return self._call(self._transaction_reader.read())

    def wait_for_transaction(self, transactional_id: str, state: str, timeout: float) -> TransactionStatus:
        try:
            return self._call(self._transaction_reader.wait_state(transactional_id, state), timeout)
        except TimeoutError:
            found = self._call(self._transaction_reader.find(transactional_id))
            told = "it does not exist" if found is None else f"it is {found.state}"
            message = f"transactional id {transactional_id!r} was to be {state}, after {timeout:g} s {told}"
            raise TimeoutError(message) from None

    def _count(self, topic: str, *, read_committed: bool) -> int | None:
        try:
            return len(self.records(topic, read_committed=read_committed))
        except ApiError:
            return None

    def _call(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run the coroutine on the broker's event loop and return its result.

        Raises NotServing if the broker does not run, and TimeoutError if the call takes too long.
        """
        if self._thread is None or not self._may_run.is_set():
            coroutine.close()
            self._check_running()
            raise NotServing("the broker is paused")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout)
        except TimeoutError:
            future.cancel()
            raise
        except CancelledError:
            raise NotServing("the broker ended before it could answer") from None

    def _check_running(self) -> None:
        if self._thread is None:
            raise NotServing("the broker is not running")

    def _end(self, callback: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the event loop is closed: the thread has ended by itself and has reported why
            self._loop.call_soon_threadsafe(callback)
        self._may_run.set()
        self._join()

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    # In the broker's own thread

    def _run(self, serving: Future[None]) -> None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            try:
                runner.run(self._serve(serving))
            except BaseException as error:
                # Until the broker is ready the caller waits for the result; later only the thread can report an error.
                if serving.done():
                    raise
                serving.set_exception(error)

    async def _serve(self, serving: Future[None]) -> None:
        self.clock = VirtualClock(self.clock.advanced_ms)
        consensus = network = None
        if self._surroundings is not None:
            node_id = int(self._values["node.id"])
            consensus = self._surroundings.consensus(node_id, self.clock)
            network = self._surroundings.network(node_id)
        self._app = App(
            self._values, clock=self.clock, network=network, consensus=consensus, intercept=self._faults.intercept
        )
        await self._app.start()
        self._reader = TopicReader(self._app.services)
        self._group_reader = GroupReader(self._app.services, self._app.survey)
        self._transaction_reader = TransactionReader(self._app.services)
        self._loop = asyncio.get_running_loop()
        self._ending: asyncio.Future[bool] = self._loop.create_future()
        self._main = asyncio.current_task()
        serving.set_result(None)
        if await self._ending:
            await self._app.stop()

    def _stand_still(self, stands_still: threading.Event) -> None:
        stands_still.set()
        self._may_run.wait()
        if self._is_killed:
            self._die()  # before anything that has arrived meanwhile is handled

    def _die(self) -> None:
        if self._ending.done():
            return
        # A running task could still append; a cancelled one ends with the event loop.
        for task in asyncio.all_tasks(self._loop):
            if task is not self._main:
                task.cancel()
        self._app.kill()
        _resolve(self._ending, False)

    async def _advance(self, milliseconds: int) -> None:
        await self.clock.advance(milliseconds)
        for directory in self._app.services.logs.directories:
            retention = directory.housekeeping.retention
            if retention is not None and not retention.done():
                await asyncio.wait((retention,))


def _reader(read_committed: bool) -> Reader:
    return Reader.COMMITTED if read_committed else Reader.UNCOMMITTED


def _resolve(ending: asyncio.Future[bool], clean: bool) -> None:
    if not ending.done():
        ending.set_result(clean)
