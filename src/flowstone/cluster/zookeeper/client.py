"""A kazoo client for an event loop: one ZooKeeper session after the other, until it is closed or dropped.

Our own threads may wait for ZooKeeper (`insist`); the loop never does, it awaits (`ask`). Callbacks in kazoo's own
threads only hand over to the loop. After a session has expired a new one begins by itself; listeners recreate the
ephemeral nodes of the old one.

kazoo keeps a session alive from a thread of its own, so a live session says nothing of the loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, NodeExistsError, OperationTimeoutError, SessionExpiredError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

from flowstone.cluster.zookeeper.ensemble_login import NO_LOGIN, EnsembleLogin
from flowstone.cluster.zookeeper.kazoo_client import ImpatientHandler, NegotiatedTimeout
from flowstone.errors import StartupError

# Brokers whose address names no path use this one, to share nothing with other users of the same ZooKeeper.
DEFAULT_CHROOT = "/flowstone"
ZOOKEEPER_CONNECT_TIMEOUT_S = 15.0
RECONNECT_DELAY_S_MAX = 1.0
# How many servers that accept a connection and do not answer may be tried before the session expires.
TRIES_PER_SESSION = 6
ANSWER_TIMEOUT_MIN_S = 1.0
TRANSACTION_DELETIONS_MAX = 100

# The answer is lost: whether the operation was done is unknown.
LOST = (ConnectionLoss, SessionExpiredError, OperationTimeoutError)

Answer = TypeVar("Answer")

logger = logging.getLogger(__name__)


class SessionState(Enum):
    CONNECTED = "connected"
    SUSPENDED = "the connection is lost, the session may not be"
    EXPIRED = "the session has ended, and everything ephemeral with it"


class Closed(Exception):
    """The client was closed or dropped meanwhile."""


class ZooKeeperClient:
    def __init__(self, connect: str, session_timeout_s: float, login: EnsembleLogin = NO_LOGIN) -> None:
        """Create the client. `connect` is HOST:PORT,HOST:PORT/path. Belongs to the running event loop, if there is
        one.
        """
        hosts, slash, path = connect.partition("/")
        self.connect, self.chroot = connect, f"/{path.strip('/')}" if slash and path.strip("/") else DEFAULT_CHROOT
        self._loop = _running_loop()
        self._handler = ImpatientHandler(max(ANSWER_TIMEOUT_MIN_S, session_timeout_s / TRIES_PER_SESSION))
        self._negotiated = NegotiatedTimeout()
        retry = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": RECONNECT_DELAY_S_MAX}
        try:
            self.kazoo = KazooClient(
                hosts,
                session_timeout_s,
                handler=self._handler,
                connection_retry=retry,
                logger=self._negotiated,
                **login.arguments,
            )
        except ValueError as error:
            raise StartupError(f"zookeeper.connect: {connect!r} is not HOST:PORT,HOST:PORT/path: {error}") from error
        self.kazoo.add_listener(self._changed)
        self._listeners: list[Callable[[SessionState], None]] = []
        self._is_closed = False
        self._users = 2  # the membership and the log
        self._connected = threading.Event()

    def on_state(self, listener: Callable[[SessionState], None]) -> None:
        """Call `listener` with each new state, on the event loop."""
        self._listeners.append(listener)

    @property
    def is_connected(self) -> bool:
        return self._connected.is_set() and not self._is_closed

    @property
    def session_id(self) -> int | None:
        client_id = self.kazoo.client_id
        return None if client_id is None else int(client_id[0])

    @property
    def session_timeout_s(self) -> float:
        """Return the timeout that the server has granted, which may be less than was requested."""
        return self._negotiated.timeout_s

    def path(self, name: str) -> str:
        return f"{self.chroot}/{name}"

    # Life cycle

    def start(self) -> None:
        """Connect and wait for that. Raises StartupError if ZooKeeper does not answer."""
        self.kazoo.start_async().wait(ZOOKEEPER_CONNECT_TIMEOUT_S)
        if not self.kazoo.connected:
            self.drop()
            raise StartupError(
                f"ZooKeeper at {self.connect} did not answer within {ZOOKEEPER_CONNECT_TIMEOUT_S:g} s: "
                "is it running, and is the address right?"
            )
        assert self._negotiated.timeout_s > 0, "kazoo did not tell the session timeout that was granted"

    def close(self) -> None:
        """Close the client and its session. Waits."""
        if not self._is_closed:
            self._is_closed = True
            self._end()

    async def release(self) -> None:
        """Record that one of the client's users has finished; the last one closes it."""
        self._users -= 1
        if not self._users:
            await asyncio.to_thread(self.close)

    def drop(self) -> None:
        """Drop the connection at once, as if the process had ended: the session is left to expire."""
        if not self._is_closed:
            self._is_closed = True
            self._handler.cut()
            threading.Thread(target=self._end, name="zookeeper-drop", daemon=True).start()

    def _end(self) -> None:
        self._connected.set()  # waiting callers learn that the client is closed
        self.kazoo.stop()
        self.kazoo.close()

    # Calls from a thread, which wait

    def wait(self, asked: Any) -> Any:
        """Return the result of one of kazoo's asynchronous calls. Raises one of `LOST` if it takes longer than a
        session lasts.
        """
        try:
            return asked.get(timeout=self.session_timeout_s)
        except KazooTimeoutError:  # kazoo may lose a call made at the moment at which a session ends
            raise ConnectionLoss from None

    def wait_connected(self) -> None:
        self._connected.wait()
        if self._is_closed:
            raise Closed

    def insist(self, call: Callable[..., Answer], *arguments: object) -> Answer:
        """Run a call, again after every lost connection, until there is an answer. Raises Closed if there will be none.

        The call must be idempotent.
        """
        while True:
            self.wait_connected()
            with suppress(*LOST):
                return call(*arguments)

    def get(self, name: str) -> tuple[bytes, Any]:
        """Return (data, status) of a node. Raises NoNodeError."""
        data, status = self.insist(lambda: self.wait(self.kazoo.get_async(self.path(name))))
        return data, status

    def get_all(self, names: Sequence[str]) -> list[bytes]:
        """Return the data of several nodes, requested together. Raises NoNodeError if one is missing."""

        def get() -> list[bytes]:
            asked = [self.kazoo.get_async(self.path(name)) for name in names]
            return [self.wait(each)[0] for each in asked]

        return self.insist(get)

    def children(self, name: str) -> list[str]:
        """Return the names of a node's children. Raises NoNodeError."""
        return list(self.insist(lambda: self.wait(self.kazoo.get_children_async(self.path(name)))))

    def sync(self) -> None:
        """Wait until the ZooKeeper server has applied all changes committed so far."""
        self.insist(lambda: self.wait(self.kazoo.sync_async(self.chroot)))

    def create(self, name: str, data: bytes) -> None:
        """Create a node with a unique name, or whose content is the same whichever broker creates it."""
        with suppress(NodeExistsError):
            self.insist(lambda: self.wait(self.kazoo.create_async(self.path(name), data, makepath=True)))

    def delete_all(self, names: Iterable[str]) -> None:
        """Delete nodes in this order, as far as possible: another broker may delete the same ones. Raises one of
        `LOST`.
        """
        paths = [self.path(name) for name in names]
        for start in range(0, len(paths), TRANSACTION_DELETIONS_MAX):
            transaction = self.kazoo.transaction()
            for path in paths[start : start + TRANSACTION_DELETIONS_MAX]:
                transaction.delete(path)
            if not succeeded(self.wait(transaction.commit_async())):
                return

    # Calls from the event loop, which are awaited

    async def ask(self, start: Callable[[], Any]) -> Any:
        """Return what `wait` returns. Raises one of `LOST` at once while there is no connection."""
        if not self.is_connected:
            raise ConnectionLoss
        assert self._loop is not None
        answer: asyncio.Future[Any] = self._loop.create_future()
        start().rawlink(lambda result: self.on_loop(_settle, answer, result))
        try:
            async with asyncio.timeout(self.session_timeout_s):
                return await answer
        except TimeoutError:
            raise ConnectionLoss from None

    def on_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        """Call back on the event loop. For kazoo's threads."""
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop is closed: the broker is gone
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _changed(self, kazoo_state: str) -> None:
        """Handle a change of the connection's state, in kazoo's thread."""
        if self._is_closed:
            return
        if kazoo_state == KazooState.CONNECTED:
            state = SessionState.CONNECTED
            self._connected.set()
        else:
            state = SessionState.SUSPENDED if kazoo_state == KazooState.SUSPENDED else SessionState.EXPIRED
            self._connected.clear()
        if self._loop is not None:
            self.on_loop(self._tell, state)

    def _tell(self, state: SessionState) -> None:
        if self._is_closed:
            return
        logger.info("ZooKeeper at %s: %s", self.connect, state.value)
        for listener in self._listeners:
            listener(state)


def succeeded(results: Sequence[object]) -> bool:
    """Return whether a transaction was done, as a whole; otherwise nothing of it was."""
    return not any(isinstance(result, Exception) for result in results)


def _settle(answer: asyncio.Future[Any], result: Any) -> None:
    if answer.done():
        return
    if result.exception is None:
        answer.set_result(result.value)
    else:
        answer.set_exception(result.exception)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
