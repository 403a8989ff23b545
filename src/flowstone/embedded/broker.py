"""`Broker`: the interface for programs that embed a broker.

Owns the directory and the port, which stay the same across restarts, and chooses between a thread and a process. Any
thread may call its methods.
"""

from __future__ import annotations

import os
import socket  # noqa: TID251 - keeps a port from others while no broker listens on it; carries no bytes
import tempfile  # noqa: TID251 - the embedding program's scratch space, which the broker's file port must not know
from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self
from weakref import finalize

from flowstone.broker.lag.group_status import GroupStatus
from flowstone.embedded.faults import Fault, Faults
from flowstone.embedded.host import BROKERS_DEFAULT, Host, NotInProcessMode, Record
from flowstone.embedded.security import BrokerSecurity, Security, check_kind
from flowstone.embedded.settings import HOST, broker_settings
from flowstone.embedded.thread_host import ThreadHost
from flowstone.embedded.transaction_reader import TransactionStatus, check_state
from flowstone.errors import ErrorCode

WAIT_TIMEOUT_S = 10.0


class Broker:
    """An embedded broker, which runs from its construction until `stop`, `kill` or the end of its `with` block."""

    def __init__(
        self,
        *,
        mode: Literal["thread", "process"] = "thread",
        data: str | None = None,
        port: int = 0,
        http: bool = False,
        settings: Mapping[str, object] | None = None,
        security: Security = "none",
    ) -> None:
        """Start the broker. Without `data` it uses a temporary directory, which is removed at the end.

        With `security` the listener is encrypted ("tls"), needs a login ("sasl"), or both ("sasl_tls"), with
        certificates and a user made for this broker; `client_config` and `client_properties` are how to connect.

        With `http` it also serves the pages for health and metrics; the attribute `http` is their address. Raises
        ConfigError if a setting is invalid, and StartupError if the broker cannot start.
        """
        if mode not in ("thread", "process"):
            raise ValueError(f"mode is 'thread' or 'process', not {mode!r}")
        check_kind(security)
        self._temporary = tempfile.TemporaryDirectory(prefix="flowstone-") if data is None else None
        self.data_directory = self._temporary.name if self._temporary is not None else str(data)
        if port == 0:
            reservation = _reserve_port()
            port = reservation.getsockname()[1]
            self._release_port = finalize(self, os.close, reservation.detach())
        self.port = port
        self.bootstrap = f"{HOST}:{port}"
        self._secrets = tempfile.TemporaryDirectory(prefix="flowstone-security-") if security != "none" else None
        self._security = BrokerSecurity(security, self._secrets.name if self._secrets is not None else "")
        given = {**self._security.settings, **({"http.listener": f"{HOST}:0"} if http else {}), **(settings or {})}
        is_temporary = self._temporary is not None
        values = broker_settings(
            self.data_directory, port, given, is_temporary=is_temporary, protocol=self._security.protocol
        )
        self._faults = Faults()
        self._thread_host = self._new_thread_host(values) if mode == "thread" else None
        self._host: Host = self._thread_host or self._new_process_host(values)
        try:
            self._host.start()
        except BaseException:
            self._clean_up()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def http(self) -> str | None:
        """The address of the HTTP pages, http://HOST:PORT; None if they are off."""
        address = self._host.http_address
        return f"http://{address}" if address is not None else None

    @property
    def client_config(self) -> dict[str, Any]:
        """The configuration of a confluent-kafka client: the address, and the encryption and login if there is one."""
        return {"bootstrap.servers": self.bootstrap, **self._security.librdkafka()}

    @property
    def client_properties(self) -> dict[str, str]:
        """The same by Kafka's names, for Java clients; with the prefix `kafka.` they are options of Spark."""
        return {"bootstrap.servers": self.bootstrap, **self._security.properties()}

    # Life cycle

    def stop(self) -> None:
        """Stop cleanly and remove the temporary directory. May be called repeatedly, and after `kill`."""
        self._host.stop()
        self._clean_up()

    def kill(self) -> None:
        """End the broker like a crash of its process. Its data stays: `restart` recovers it, `stop` removes it."""
        self._host.kill()

    def restart(self) -> None:
        """Stop cleanly, unless the broker was killed, and start again with the same port, data and clock."""
        if self._host.is_running:
            self._host.stop()
        self._host.start()

    def pause(self) -> None:
        """Suspend the broker: it reads and answers nothing, and connections stay open."""
        self._host.pause()

    def resume(self) -> None:
        self._host.resume()

    # Contents

    def create_topic(
        self, name: str, *, partitions: int | None = None, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic with `partitions` partitions, by default `num.partitions`. Raises ApiError if refused."""
        self._host.create_topic(name, BROKERS_DEFAULT if partitions is None else partitions, configs or {})

    def records(self, topic: str, *, read_committed: bool = False) -> list[Record]:
        """Return all records that a consumer could read now, by partition and offset.

        `read_committed` omits aborted records, and ends where the oldest open transaction begins. Raises ApiError if
        the topic does not exist.
        """
        return self._host.records(topic, read_committed=read_committed)

    def wait_for(
        self, topic: str, n: int, timeout: float = WAIT_TIMEOUT_S, *, read_committed: bool = False
    ) -> list[Record]:
        """Return the topic's records as soon as there are `n`; the topic may be created meanwhile.

        Raises TimeoutError if there are fewer after `timeout` seconds.
        """
        return self._host.wait_for(topic, n, timeout, read_committed=read_committed)

    def groups(self) -> dict[str, GroupStatus]:
        """Return every consumer group by name, with members, partitions and lag. Thread mode only."""
        return self._in_thread("only a broker in thread mode shows its groups").groups()

    def wait_for_group(
        self, group_id: str, *, members: int | None = None, timeout: float = WAIT_TIMEOUT_S
    ) -> GroupStatus:
        """Return the group as soon as all its partitions have owners and it has `members` members, if given.

        Thread mode only. Raises TimeoutError if that takes longer than `timeout` seconds.
        """
        host = self._in_thread("only a broker in thread mode waits for groups")
        return host.wait_for_group(group_id, members, timeout)

    def transactions(self) -> dict[str, TransactionStatus]:
        """Return every transactional id that this broker coordinates, with its state. Thread mode only."""
        return self._in_thread("only a broker in thread mode shows its transactions").transactions()

    def wait_for_transaction(
        self, transactional_id: str, state: str, timeout: float = WAIT_TIMEOUT_S
    ) -> TransactionStatus:
        """Return the transactional id as soon as it has the state, for example "CompleteAbort".

        Thread mode only. Raises ValueError if there is no such state, and TimeoutError if that takes longer than
        `timeout` seconds.
        """
        check_state(state)
        host = self._in_thread("only a broker in thread mode waits for transactions")
        return host.wait_for_transaction(transactional_id, state, timeout)

    # Control

    @property
    def clock(self) -> BrokerClock:
        """The broker's clock. Thread mode only."""
        return BrokerClock(self._in_thread("only a broker in thread mode has a clock that can be moved"))

    def fault(
        self,
        api: str,
        *,
        error: ErrorCode | None = None,
        delay_ms: int = 0,
        disconnect: bool = False,
        times: int | None = None,
        client_id: str | None = None,
    ) -> Fault:
        """Inject a fault into requests of `api` (Kafka's name): an `error`, a delay, or a disconnect.

        The fault ends after it was applied `times` times, when it is removed, or when its `with` block ends. A request
        whose response has no field for an error is served as usual and not counted. Thread mode only. Raises ValueError
        if the arguments are invalid.
        """
        self._in_thread("only a broker in thread mode has wire faults")
        return self._faults.add(
            api, error=error, delay_ms=delay_ms, disconnect=disconnect, times=times, client_id=client_id
        )

    def _new_thread_host(self, values: Mapping[str, str]) -> ThreadHost:
        return ThreadHost(values, self._faults)

    def _new_process_host(self, values: Mapping[str, str]) -> Host:
        from flowstone.embedded.process_host import ProcessHost  # not needed in thread mode, so not imported

        return ProcessHost(values, self.bootstrap, self._security.librdkafka())

    def _in_thread(self, complaint: str) -> ThreadHost:
        if self._thread_host is None:
            raise NotInProcessMode(complaint)
        return self._thread_host

    def _clean_up(self) -> None:
        if hasattr(self, "_release_port"):
            self._release_port()
        if self._temporary is not None:
            self._temporary.cleanup()
        if self._secrets is not None:
            self._secrets.cleanup()


class BrokerClock:
    """The clock of a broker in thread mode: real time plus the time by which it was advanced."""

    def __init__(self, host: ThreadHost) -> None:
        self._host = host

    def time_ms(self) -> int:
        """Return the milliseconds since the epoch, as the broker sees them."""
        return self._host.clock.time_ms()

    def advance(
        self,
        *,
        weeks: float = 0,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> None:
        """Advance all timeouts of the broker at once. Raises ValueError if the time is negative.

        When it returns, every timer that has become due has run once, and retention has been applied if it was due.
        """
        by = timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
        if by < timedelta():
            raise ValueError(f"a clock cannot go back, not even by {-by}")
        self._host.advance(by // timedelta(milliseconds=1))


def _reserve_port() -> socket.socket:
    """Return a socket that reserves a free port while the broker is down; the broker can still listen on it.

    Otherwise a client that keeps trying to connect could get the same port as its own and block the broker.
    """
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind((HOST, 0))
    return reservation
