"""Listeners and connections: limits on connections, timeouts for idle and slow clients, and stopping.

Connections beyond `max.connections` or `max.connections.per.ip` are closed before a byte is read. A sweep once a second
closes connections that are idle, that began a request and did not finish it, or that do not read their responses; the
last ones sooner if the unsent bytes of all connections exceed a limit.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from flowstone.broker.authentication.failed_logins import FailedLogins
from flowstone.broker.authentication.listener_security import ListenerSecurity
from flowstone.broker.dispatch.deferred import Answer
from flowstone.broker.dispatch.dispatcher import Dispatcher
from flowstone.broker.network.admission import Admission
from flowstone.broker.network.busy_poll import BusyPoller
from flowstone.broker.network.connection import RECEIVE_BYTES, Connection
from flowstone.broker.network.connection_limits import ConnectionLimits
from flowstone.broker.network.live_settings import follow_settings
from flowstone.broker.network.outbox import UnreadableSlice
from flowstone.broker.network.receive_buffers import BufferPool
from flowstone.broker.network.unsent_bytes import UNSENT_BYTES_MAX
from flowstone.broker.requests.context import Services
from flowstone.broker.requests.session import ClientSession
from flowstone.errors import StartupError, StorageFault
from flowstone.ports.clock import Timer
from flowstone.ports.loops import Turns
from flowstone.ports.network import Channel, Listener, Network, SystemNetwork

logger = logging.getLogger(__name__)

SWEEP_INTERVAL_S = 1.0
# While memory for requests is short, connections that send a request more slowly than this are closed.
CONTENDED_BYTES_PER_S = 1 << 20


class Server:
    def __init__(
        self,
        services: Services,
        network: Network | None = None,
        security: Mapping[str, ListenerSecurity] = MappingProxyType({}),
    ) -> None:
        """Create a server without addresses; `security` is that of the listeners by name. Raises ConfigError."""
        config = services.config
        self._network: Network = network or SystemNetwork()
        self._config, self._clock = config, services.clock
        self._workers, self._waiting, self._partitions = services.workers, services.waiting, services.partitions
        self.answer: Callable[[memoryview, ClientSession], Answer] = Dispatcher(services).answer
        self._loop_lag_seconds = services.metrics.loop_lag_seconds
        self.request_bytes_max = config.socket_request_max_bytes
        self.pipelined_requests_max = config.connection_max_pipelined_requests
        self.queued_response_bytes_max = config.connection_max_queued_response_bytes
        self.unsent = services.unsent
        self.buffers = BufferPool(config.request_bytes_max)
        self.receive_buffer = memoryview(bytearray(RECEIVE_BYTES))
        self.monotonic: Callable[[], float] = services.clock.monotonic
        self.call_later = services.clock.call_later
        # A simulated network has nothing to poll for, and its clock does not advance while polling.
        poll_s = config.idle_poll_us / 1_000_000 if isinstance(self._network, SystemNetwork) else 0.0
        self.busy_poller = BusyPoller(asyncio.get_running_loop().call_soon, self.monotonic, poll_s)
        self.strangers, self.encrypted_sends = Turns(asyncio.get_running_loop()), Turns(asyncio.get_running_loop())
        # For listeners that have no security nothing is done and nothing is looked up.
        self._admissions = {
            name: Admission(each, services, self) for name, each in security.items() if each.has_tls or each.has_sasl
        }
        self._refused = FailedLogins(services.clock)
        self._limits = ConnectionLimits(config, services.quotas, self.monotonic)
        follow_settings(services, self._limits)
        self._listeners: list[Listener] = []
        self._connections: set[Connection] = set()
        self._per_host: Counter[str] = Counter()
        self._all_closed = asyncio.Event()
        self._sweeping: Timer | None = None
        self._sweep_due = 0.0
        self._swept_at = self._swept_before = 0.0  # the start times of the last sweep and the one before
        self.accepted_count = self.refused_count = self.dropped_count = 0

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def bind(self, name: str, host: str, port: int) -> int:
        """Bind an address and return its port. Connections are accepted from `start` on. Raises StartupError."""
        try:
            listener = self._network.bind(
                host,
                port,
                partial(self._accept, name),
                send_buffer_bytes=self._config.socket_send_buffer_bytes,
            )
        except OSError as error:
            raise StartupError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        self._listeners.append(listener)
        return listener.port

    def start(self) -> None:
        for listener in self._listeners:
            listener.start()
        self._schedule_sweep()

    async def stop(self, timeout_s: float) -> None:
        """Stop accepting and reading, answer the requests that were read, and close; at the timeout, close the rest."""
        for listener in self._listeners:
            listener.close()
        for admission in self._admissions.values():
            admission.close()
        self._all_closed.clear()  # it may have been set earlier, when there were no connections for a while
        for connection in tuple(self._connections):
            connection.finish()
        self._waiting.release_fetches()
        deadline = self._clock.call_later(timeout_s, self._all_closed.set)
        if self._connections:
            await self._all_closed.wait()
        deadline.cancel()
        self.kill()

    def kill(self) -> None:
        """Close all listeners and connections at once."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        for listener in self._listeners:
            listener.close()
        for admission in self._admissions.values():
            admission.close()
        for connection in tuple(self._connections):
            connection.close()

    # What connections need

    def read(self, function: Callable[[], object]) -> asyncio.Future[object]:
        return self._workers.read(function)

    def unreadable(self, slice_error: UnreadableSlice) -> None:
        partition = self._partitions.of_file(slice_error.file.path)
        if partition is not None:
            partition.local.fail(StorageFault(str(slice_error)))

    def closed(self, connection: Connection, reason: str) -> None:
        admission = self._admissions.get(connection.session.listener_name)
        if reason:
            self.dropped_count += 1
            if admission is None or not admission.note_closed(connection, reason):
                logger.warning("connection from %s closed: %s", connection.session.peer, reason)
        self._connections.discard(connection)
        self.leave(connection.session.host)
        if admission is not None:
            admission.forget(connection)
        if not self._connections:
            self._all_closed.set()

    def leave(self, host: str) -> None:
        """Record that a connection of the host is closed, or its TLS handshake has failed."""
        self._per_host[host] -= 1
        if not self._per_host[host]:
            del self._per_host[host]

    def open(self, channel: Channel, listener_name: str, admit: Callable[[Connection], None] | None = None) -> None:
        """Serve a connection that was accepted."""
        self._connections.add(Connection(self, channel, listener_name, admit))

    def _accept(self, listener_name: str, channel: Channel) -> None:
        host = channel.peer.rpartition(":")[0]
        self.accepted_count += 1
        admission = self._admissions.get(listener_name)
        rest_s = self._limits.rest_s()
        if rest_s > 0:
            for listener in self._listeners:
                listener.rest(rest_s)
        if len(self._connections) + self._handshake_count() >= self._config.max_connections:
            self._refuse(channel, f"max.connections is {self._config.max_connections}")
        elif refusal := self._limits.refusal(host, self._per_host[host]):
            self._refuse(channel, refusal)
        else:
            self._per_host[host] += 1
            if admission is None:
                self.open(channel, listener_name)
            else:
                admission.accept(channel)

    def _refuse(self, channel: Channel, reason: str) -> None:
        """Close a connection that was accepted. Of many from one address only the first is logged in a minute."""
        told = "connection from %s refused: %s"
        self._refused.note(channel.peer, f"connections ({reason})", logging.WARNING, told, channel.peer, reason)
        self.refused_count += 1
        channel.close()

    def _handshake_count(self) -> int:
        return sum(each.handshake_count for each in self._admissions.values())

    def _sweep(self) -> None:
        now = self._clock.monotonic()
        self._loop_lag_seconds.observe(max(0.0, now - self._sweep_due))
        idle_ms = self._config.connections_max_idle_ms
        silent_since = now - idle_ms / 1000 if idle_ms >= 0 else -math.inf
        stalled_since = now - self._config.connection_frame_timeout_ms / 1000
        for connection in tuple(self._connections):
            if connection.is_unread and connection.last_progress < stalled_since:
                connection.close("the client did not read its responses within connection.frame.timeout.ms")
                continue
            if connection.is_muted:
                continue  # its requests are not read, so it is neither late nor idle
            if _is_frame_late(connection, stalled_since):
                connection.try_read()  # the loop itself may have been late: read what the client has sent first
            if _is_frame_late(connection, stalled_since):
                connection.close("a request was not complete within connection.frame.timeout.ms")
            elif connection.buffers.is_short and connection.is_slower_than(CONTENDED_BYTES_PER_S, now):
                connection.close("a request arrived too slowly while others waited for queued.max.request.bytes")
            elif connection.is_finishing and connection.last_received < stalled_since:
                connection.close()  # the client is gone, or its response would come too late
            elif not connection.is_answering and connection.last_received < silent_since:
                connection.close()
            elif self._swept_before < connection.last_received <= self._swept_at:
                connection.try_read()  # it has become idle; while it sends, it is read from anyway
        self._swept_before, self._swept_at = self._swept_at, now
        for admission in self._admissions.values():
            admission.sweep(now)
        if self.unsent.is_too_much:
            self._shed(now)
        self._schedule_sweep()

    def _shed(self, now: float) -> None:
        """Close connections until the unsent bytes are below the limit: those that read nothing first."""
        taking_since = now - SWEEP_INTERVAL_S
        unread = [connection for connection in self._connections if connection.unsent.memory_bytes]
        unread.sort(key=lambda connection: (connection.last_progress > taking_since, -connection.unsent.memory_bytes))
        for connection in unread:
            if not self.unsent.is_too_much:
                return
            connection.close(
                f"{connection.unsent.memory_bytes} bytes were not read, and all unread responses together "
                f"are more than {UNSENT_BYTES_MAX}"
            )

    def _schedule_sweep(self) -> None:
        self._sweep_due = self._clock.monotonic() + SWEEP_INTERVAL_S
        self._sweeping = self._clock.call_later(SWEEP_INTERVAL_S, self._sweep)


def _is_frame_late(connection: Connection, stalled_since: float) -> bool:
    """Return whether a request began to arrive before `stalled_since` and is not complete."""
    return connection.frame_started is not None and connection.frame_started < stalled_since
