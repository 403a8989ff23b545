"""`Broker`: what a program that embeds a broker sees of it.

Owns the directory and the port, which stay the same from one start to the next, and the choice of what the broker runs
in. Calls may come from any thread.
"""

from __future__ import annotations

import os
import socket  # noqa: TID251 - keeps a port from others while no broker listens on it; carries no bytes
import tempfile  # noqa: TID251 - the embedding program's scratch space, which the broker's file port must not know
from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import Literal, Self
from weakref import finalize

from flowstone.broker.lag.group_status import GroupStatus
from flowstone.embedded.faults import Fault, Faults
from flowstone.embedded.host import BROKERS_DEFAULT, Host, NotInProcessMode, Record
from flowstone.embedded.settings import HOST, broker_settings
from flowstone.embedded.thread_host import ThreadHost
from flowstone.errors import ErrorCode

WAIT_TIMEOUT_S = 10.0


class Broker:
    """Serves once constructed, until `stop`, `kill` or the end of its `with` block."""

    def __init__(
        self,
        *,
        mode: Literal["thread", "process"] = "thread",
        data: str | None = None,
        port: int = 0,
        http: bool = False,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """Without `data` it lives in a temporary directory, removed at the end. ConfigError, StartupError.

        With `http` it serves health and metrics too, on the address that `http` then is.
        """
        if mode not in ("thread", "process"):
            raise ValueError(f"mode is 'thread' or 'process', not {mode!r}")
        self._temporary = tempfile.TemporaryDirectory(prefix="flowstone-") if data is None else None
        self.data_directory = self._temporary.name if self._temporary is not None else str(data)
        if port == 0:
            reservation = _reserve_port()
            port = reservation.getsockname()[1]
            self._release_port = finalize(self, os.close, reservation.detach())
        self.port = port
        self.bootstrap = f"{HOST}:{port}"
        given = {**({"http.listener": f"{HOST}:0"} if http else {}), **(settings or {})}
        is_temporary = self._temporary is not None
        values = broker_settings(self.data_directory, port, given, is_temporary=is_temporary)
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
        """The address of its pages, http://HOST:PORT; None where they are off."""
        address = self._host.http_address
        return f"http://{address}" if address is not None else None

    # Its life

    def stop(self) -> None:
        """Stops cleanly and removes the temporary directory. May be called again, and after `kill`."""
        self._host.stop()
        self._clean_up()

    def kill(self) -> None:
        """Ends the broker as if its process had died. Its data stays: `restart` recovers it, `stop` ends it."""
        self._host.kill()

    def restart(self) -> None:
        """Stops cleanly, unless it was killed, and starts again: same port, same data, same clock."""
        if self._host.is_running:
            self._host.stop()
        self._host.start()

    def pause(self) -> None:
        """From now on the broker reads nothing and answers nothing; connections stay."""
        self._host.pause()

    def resume(self) -> None:
        self._host.resume()

    # What is in it

    def create_topic(
        self, name: str, *, partitions: int | None = None, configs: Mapping[str, str] | None = None
    ) -> None:
        """With as many partitions as `num.partitions` says, where no number is given. ApiError."""
        self._host.create_topic(name, BROKERS_DEFAULT if partitions is None else partitions, configs or {})

    def records(self, topic: str) -> list[Record]:
        """Everything a consumer could read now, by partition and offset. ApiError if there is no such topic."""
        return self._host.records(topic)

    def wait_for(self, topic: str, n: int, timeout: float = WAIT_TIMEOUT_S) -> list[Record]:
        """The topic's records as soon as there are `n`; the topic need not be there yet. TimeoutError."""
        return self._host.wait_for(topic, n, timeout)

    def groups(self) -> dict[str, GroupStatus]:
        """Every consumer group by name: members, partitions and lag. Thread mode only."""
        return self._in_thread("only a broker in thread mode shows its groups").groups()

    def wait_for_group(
        self, group_id: str, *, members: int | None = None, timeout: float = WAIT_TIMEOUT_S
    ) -> GroupStatus:
        """The group as soon as its partitions are all shared out, among so many `members` where that is given.

        Thread mode only. TimeoutError.
        """
        host = self._in_thread("only a broker in thread mode waits for groups")
        return host.wait_for_group(group_id, members, timeout)

    # What can be done to it

    @property
    def clock(self) -> BrokerClock:
        """Thread mode only."""
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
        """From now on requests of `api` (Kafka's name) are answered with `error`, `delay_ms` late, or not at all.

        In force until it has been met `times` times, is removed, or its `with` block ends. A request whose response has
        no room for an error is served as usual, and not counted. Thread mode only. ValueError.
        """
        self._in_thread("only a broker in thread mode has wire faults")
        return self._faults.add(
            api, error=error, delay_ms=delay_ms, disconnect=disconnect, times=times, client_id=client_id
        )

    def _new_thread_host(self, values: Mapping[str, str]) -> ThreadHost:
        return ThreadHost(values, self._faults)

    def _new_process_host(self, values: Mapping[str, str]) -> Host:
        from flowstone.embedded.process_host import ProcessHost  # not needed, so not loaded, in thread mode

        return ProcessHost(values, self.bootstrap)

    def _in_thread(self, complaint: str) -> ThreadHost:
        if self._thread_host is None:
            raise NotInProcessMode(complaint)
        return self._thread_host

    def _clean_up(self) -> None:
        if hasattr(self, "_release_port"):
            self._release_port()
        if self._temporary is not None:
            self._temporary.cleanup()


class BrokerClock:
    """The clock of a broker in thread mode: real time plus what it was advanced by."""

    def __init__(self, host: ThreadHost) -> None:
        self._host = host

    def time_ms(self) -> int:
        """Milliseconds since the epoch, as the broker sees them."""
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
        """Moves every timeout of the broker at once. ValueError if it would go back.

        When it returns, every timer that has become due has run, once, and retention, if it was due, has been applied.
        """
        by = timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
        if by < timedelta():
            raise ValueError(f"a clock does not go back, not even by {-by}")
        self._host.advance(by // timedelta(milliseconds=1))


def _reserve_port() -> socket.socket:
    """A free port that nobody else is given while the broker is down; the broker may still listen on it.

    Otherwise a client that keeps trying to connect could be given that very port as its own, and keep the broker out.
    """
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind((HOST, 0))
    return reservation
