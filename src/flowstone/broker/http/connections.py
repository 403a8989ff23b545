"""The connections of the HTTP listener: uvicorn's protocol with the limits it lacks.

Every connection has a deadline for what it does next: its first request must be complete within `HEAD_TIMEOUT_S`, an
answer must begin within `ANSWER_TIMEOUT_S`, and the peer must take `PROGRESS_BYTES_MIN` of it, or the rest, in each
further `ANSWER_TIMEOUT_S`; the next request must be complete within `KEEP_ALIVE_S` and `HEAD_TIMEOUT_S`. That bounds
slow heads, endless bodies, unread answers and idle peers alike, and lets a long answer, such as a stream, go on. Timers
are the event loop's own and not the clock port's: moving a virtual clock is no reason to hang up.

A new connection is always accepted, because it may be a health probe. If there are too many, another one is closed:
first one without a request, then one whose body is still arriving, then one that does not read its answer; of these,
the oldest one of the address with the most connections. A connection whose answer is being made is never closed: fewer
answers are made at once (`routes.PAGES_MAX`) than there are connections.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from enum import IntEnum
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

# Many times what one iteration of the loop accepts (`ports.network.ACCEPTS_PER_WAKEUP_MAX`): a probe's request is read
# before enough others have been accepted to close its connection.
CONNECTIONS_MAX = 512
REQUEST_HEAD_BYTES_MAX = 16 * 1024
# The time until the head of a connection's first request is complete.
HEAD_TIMEOUT_S = 5.0
# The time from a request until its answer begins, and then between two checks that the peer reads it.
ANSWER_TIMEOUT_S = 30.0
PROGRESS_BYTES_MIN = 1024
KEEP_ALIVE_S = 20
# Bytes parsed in one time slice: a body in chunks of one byte takes 15 microseconds for each.
SLICE_BYTES = 4 * 1024
# Bytes of answers that peers have not read, over all connections.
UNSENT_BYTES_MAX = 32 << 20

# Warnings concern peers, of which there may be many: within this time one is logged, and the others are counted.
WARNING_INTERVAL_S = 60.0


class Phase(IntEnum):
    """The phases of a connection, from the least worth keeping to the most."""

    WAITING = 0  # for a request, or the rest of its head
    RECEIVING = 1  # a body
    SENDING = 2  # an answer that the peer has not read
    ANSWERING = 3


class SparingFilter(logging.Filter):
    """A log filter that passes one warning per interval, and every error, which is the broker's own."""

    def __init__(self) -> None:
        super().__init__()
        self._quiet_until = 0.0
        self._kept_back = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        if record.created < self._quiet_until:
            self._kept_back += 1
            return False
        if self._kept_back:
            record.msg = f"{record.msg} ({self._kept_back} more like this since the last line)"
        self._quiet_until, self._kept_back = record.created + WARNING_INTERVAL_S, 0
        return True


class State(ServerState):
    """The state that all connections of the listener share."""

    def __init__(self) -> None:
        super().__init__()
        self.is_closed = False  # a connection accepted just before closing may be reported only after it
        self.next_step = itertools.count().__next__
        self.logger = logging.getLogger(__name__)
        self.logger.filters[:] = [SparingFilter()]

    def open_connections(self) -> list[HttpConnection]:
        return [each for each in self.connections if isinstance(each, HttpConnection) and not each.is_given_up]

    def reserve(self, body_bytes: int) -> bool:
        """Return whether an answer of this size may be sent, after closing connections that do not read theirs."""
        unread = [each for each in self.open_connections() if each.unsent_bytes]
        left_bytes = UNSENT_BYTES_MAX - body_bytes - sum(each.unsent_bytes for each in unread)
        for each in sorted(unread, key=lambda each: each.since):
            if left_bytes >= 0:
                break
            left_bytes += each.unsent_bytes
            each.give_up("which does not read its answer")
        return left_bytes >= 0

    def close_one(self) -> None:
        """Close the connection that is least worth keeping."""
        candidates = [(each.phase, each) for each in self.open_connections()]
        by_address = Counter(each.address for _, each in candidates)
        candidates = [each for each in candidates if each[0] is not Phase.ANSWERING]
        if candidates:
            phase, worst = min(candidates, key=lambda each: (each[0], -by_address[each[1].address], each[1].since))
            worst.give_up(f"{phase.name.lower()} for longest")


class HttpConnection(H11Protocol):
    """One HTTP connection, with its deadline and its rank among those that may be closed."""

    def __init__(self, config: uvicorn.Config, state: State, app_state: dict[str, Any]) -> None:
        super().__init__(config, state, app_state)
        self._state = state
        self.logger = state.logger
        self.access_log = False  # uvicorn would log every request where somebody configures its loggers
        self._deadline: asyncio.TimerHandle | None = None
        self._unparsed = b""
        # At the last check: bytes of an answer that the peer had not read, and whether it has read all of them since.
        self._unsent_bytes_seen = 0
        self._has_taken_all = False
        # The step of its last activity, counted over all connections: the loop's clock would be too coarse.
        self.since = state.next_step()
        self.address = ""
        self.is_given_up = False

    @property
    def unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    @property
    def phase(self) -> Phase:
        if self.unsent_bytes:
            return Phase.SENDING
        if self.cycle is None or self.cycle.response_complete:
            return Phase.WAITING
        return Phase.RECEIVING if self.cycle.more_body else Phase.ANSWERING

    def give_up(self, reason: str) -> None:
        """Close the connection at once."""
        self.logger.warning("closing the HTTP connection of %s, %s: there are too many", self.address, reason)
        self.is_given_up = True
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if not self._state.is_closed and len(self._state.open_connections()) >= CONNECTIONS_MAX:
            self._state.close_one()
        is_refused = self._state.is_closed or len(self._state.open_connections()) >= CONNECTIONS_MAX
        super().connection_made(transport)
        # The next chunk of an answer is written once the last one was read: the number of unsent bytes falls between
        # two checks only if the peer reads some.
        # An encrypted transport pauses from the limit on, and would never resume with a limit of 0.
        transport.set_write_buffer_limits(high=0 if transport.get_extra_info("sslcontext") is None else 1)
        self.address = self.client[0] if self.client else ""
        if is_refused:
            self.is_given_up = True
            transport.abort()
        else:
            self._expect(HEAD_TIMEOUT_S)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unparsed = b""
        if self._deadline is not None:
            self._deadline.cancel()

    def data_received(self, data: bytes) -> None:
        if self._unparsed:
            self._unparsed += data
        elif len(data) > SLICE_BYTES:
            self._unparsed = data
            self.loop.call_soon(self._parse_slice)
        else:
            self._parse(data)
            return
        self.transport.pause_reading()

    def _parse_slice(self) -> None:
        """Parse a slice of the received bytes, and the rest in later iterations of the loop."""
        if self.transport.is_closing():
            self._unparsed = b""
            return
        data, self._unparsed = self._unparsed[:SLICE_BYTES], self._unparsed[SLICE_BYTES:]
        self._parse(data)
        if self._unparsed:
            self.transport.pause_reading()  # an answer that was completed meanwhile has resumed it
            self.loop.call_soon(self._parse_slice)
        elif not self.flow.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _parse(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            self._expect(ANSWER_TIMEOUT_S)

    def on_response_complete(self) -> None:
        self._expect(KEEP_ALIVE_S + HEAD_TIMEOUT_S)
        super().on_response_complete()

    def resume_writing(self) -> None:
        self._has_taken_all = True
        super().resume_writing()

    def _expect(self, timeout_s: float) -> None:
        """Close the connection unless the peer sends something, or reads some of an answer, in time."""
        self.since = self._state.next_step()
        self._look_again(timeout_s)

    def _look_again(self, timeout_s: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._unsent_bytes_seen, self._has_taken_all = self.unsent_bytes, False
        self._deadline = self.loop.call_later(timeout_s, self._check_progress)

    def _check_progress(self) -> None:
        if self._has_progressed():
            self._look_again(ANSWER_TIMEOUT_S)
        else:
            self.transport.abort()

    def _has_progressed(self) -> bool:
        """Return whether the peer has read some of its answer since the last check, or all that exists of it."""
        seen, unsent = self._unsent_bytes_seen, self.unsent_bytes
        if not unsent and not self._is_answering:
            return False
        return not unsent or not seen or self._has_taken_all or seen - unsent >= PROGRESS_BYTES_MIN

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
