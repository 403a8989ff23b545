"""One client connection: bytes in, whole requests to the server, answers back in the order of the requests.

Requests are handled in the buffer in which they were received: all connections of a loop share one receive buffer,
since a handler needs the bytes only until it returns. Only an incomplete request gets a buffer of its own, of the size
its length prefix names, and the rest of it is received straight into that.

Reading pauses while too many requests wait for answers, too many response bytes are unsent (of this connection or over
all of them), or the buffer pool is exhausted: a client that does not read its responses is not read from. Reading also
pauses while a coroutine works on an answer, so that a topic created by one request exists for the next one, and a
client can have only one such answer made at a time. A muted session (`ClientSession.throttle`) pauses reading, too.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from flowstone.broker.dispatch.deferred import Answer, Deferred, Slot
from flowstone.broker.dispatch.large_requests import LargeAnswer
from flowstone.broker.network.busy_poll import BusyPoller
from flowstone.broker.network.outbox import Outbox, UnreadableSlice
from flowstone.broker.network.receive_buffers import BufferPool
from flowstone.broker.network.unsent_bytes import Unsent, UnsentTotal
from flowstone.broker.requests.session import ClientSession
from flowstone.errors import ProtocolError
from flowstone.ports.clock import Timer
from flowstone.ports.network import Channel

RECEIVE_BYTES = 256 * 1024
READS_PER_WAKEUP_MAX = 4
# The time slice of one connection's requests: thousands may be received at once.
SLICE_S = 0.01
_LENGTH = struct.Struct(">i")
_LENGTH_BYTES = 4


class Host(Protocol):
    """The parts of its server that a connection uses."""

    @property
    def request_bytes_max(self) -> int: ...

    @property
    def pipelined_requests_max(self) -> int: ...

    @property
    def queued_response_bytes_max(self) -> int: ...

    @property
    def unsent(self) -> UnsentTotal: ...

    @property
    def buffers(self) -> BufferPool: ...

    @property
    def receive_buffer(self) -> memoryview: ...

    @property
    def busy_poller(self) -> BusyPoller: ...

    def monotonic(self) -> float: ...

    @property
    def call_later(self) -> Callable[[float, Callable[[], None]], Timer]: ...

    def read(self, function: Callable[[], object]) -> asyncio.Future[object]:
        """Run a function that waits for the disk in a worker thread."""
        ...

    @property
    def answer(self) -> Callable[[memoryview, ClientSession], Answer]:
        """Handle one request, given its frame and session. Raises ProtocolError to close the connection."""
        ...

    def unreadable(self, slice_error: UnreadableSlice) -> None:
        """Fail the partition whose log file could not be read while a response was being sent."""
        ...

    def closed(self, connection: Connection, reason: str) -> None: ...


class Connection:
    def __init__(
        self, host: Host, channel: Channel, listener_name: str, admit: Callable[[Connection], None] | None = None
    ) -> None:
        """Start reading from the channel. On listeners with logins or client certificates, `admit` is called first."""
        self.session = ClientSession(listener_name, channel.peer, self._muted)
        self._host, self._channel = host, channel
        # What answers a request, and the longest one; both may change with a login.
        self.answer, self.request_bytes_max = host.answer, host.request_bytes_max
        # The memory for incomplete requests, which changes with a login.
        self.buffers = host.buffers
        # Has the connection called when the channel is readable; a login makes that wait for turns.
        self.on_readable: Callable[[Callable[[], None] | None], None] = channel.on_readable
        self._busy_poller = host.busy_poller
        self._call_soon = asyncio.get_running_loop().call_soon  # looking up the loop is a system call each time
        self.unsent, self._unsent_total = Unsent(host.unsent), host.unsent
        self._outbox = Outbox(channel, self.unsent, host.read, self._flush, self._broken)
        # Requests whose answers are not in the outbox yet, in order; an answer waits for those before it.
        self._unanswered: deque[Slot] = deque()
        self._unanswered_bytes = 0
        # Received bytes that cannot be handled now: the start of a length prefix, or requests while reading pauses.
        self._kept = b""
        self._frame: memoryview | None = None
        self._frame_size = self._frame_filled = 0
        self._unmuting: Timer | None = None  # runs while the session is muted
        self._reading = self._finishing = self._closed = self._flush_scheduled = self._waits_for_buffer = False
        self.last_received = self.last_progress = host.monotonic()
        self.frame_started: float | None = None
        if admit is not None:
            admit(self)
        self._resume()

    @property
    def is_answering(self) -> bool:
        return bool(self._unanswered) or self._outbox.queued_bytes > 0

    @property
    def is_finishing(self) -> bool:
        return self._finishing

    @property
    def is_muted(self) -> bool:
        return self._unmuting is not None

    @property
    def is_unread(self) -> bool:
        """Return whether the client has not read all bytes sent to it. Answers not sent yet do not count."""
        return self._outbox.queued_bytes > 0 and not self._flush_scheduled

    def is_slower_than(self, bytes_per_s: int, now: float) -> bool:
        """Return whether the request being received arrives at less than `bytes_per_s`, after a second of grace."""
        if self._frame is None or self.frame_started is None:
            return False
        return now - self.frame_started > 1 + self._frame_filled / bytes_per_s

    def try_read(self) -> None:
        """Try to read without an event from the loop: uvloop reports a reset once, maybe with the last bytes."""
        if self._reading:
            self._readable()

    def close(self, reason: str = "") -> None:
        if self._closed:
            return
        self._closed = True
        self._pause()
        self._drop_frame()
        self._outbox.close()
        self.unsent.clear()
        for slot in self._unanswered:
            slot.cancel()
        self._unanswered.clear()
        self._unanswered_bytes = 0
        self._kept = b""
        self._busy_poller.forget(self)
        # Breaks a reference cycle, so that a closed connection is freed without the garbage collector.
        self.session.on_muted = None
        self.session.on_end = self.session.login = None
        self.answer, self.on_readable = self._host.answer, self._channel.on_readable
        self._stop_unmuting()
        self._channel.close()
        self.session.closed()
        self._host.closed(self, reason)

    def finish(self) -> None:
        """Stop reading, and close once every request that was read has been answered."""
        self._finishing = True
        self._pause()
        self._drop_frame()
        if not self.is_answering:
            self.close()

    # Reading

    def _readable(self) -> None:
        reads = 0
        try:
            while reads < READS_PER_WAKEUP_MAX:
                more = self._receive() if self._frame is None else self._receive_frame(self._frame)
                reads += 1
                if not more or not self._reading:
                    break
        except BlockingIOError:
            if not reads:
                return
        except EOFError:
            # A client may close its side after its last request and still expect the answers.
            self.finish()
            return
        except (ConnectionError, TimeoutError):
            self.close()
            return
        except ProtocolError as error:
            self.close(str(error))
            return
        self._outbox.flush()
        self.last_received = self.last_progress = now = self._host.monotonic()
        self._busy_poller.asked(self, now)
        if self._must_wait():
            self._pause()
        elif not self._reading and not self._flush_scheduled:
            self._resume()

    def _receive(self) -> bool:
        """Receive into the shared buffer and handle the requests there; return whether more may be received at once."""
        shared, kept = self._host.receive_buffer, len(self._kept)
        if kept:
            shared[:kept] = self._kept
        count = self._channel.receive_into(shared[kept:] if kept else shared)
        if not count:
            raise EOFError
        self._kept, self.frame_started = b"", None
        self._received(shared[: kept + count])
        return kept + count == len(shared)

    def _receive_frame(self, frame: memoryview) -> bool:
        """Receive into the incomplete request's own buffer; return whether the request is complete now."""
        count = self._channel.receive_into(frame[self._frame_filled : self._frame_size])
        if not count:
            raise EOFError
        self._frame_filled += count
        if self._frame_filled < self._frame_size:
            return False
        self._frame = self.frame_started = None
        large, self.session.own_frame_bytes = None, self._frame_size
        try:
            large = self._handle(frame[: self._frame_size])
        finally:
            if large is None:
                self.buffers.give_back(frame, is_free=self.session.own_frame_bytes > 0)
            self.session.own_frame_bytes = 0
        if large is not None:
            large.on_decoded = partial(self.buffers.give_back, frame)
        return True

    def _received(self, received: memoryview) -> None:
        """Handle the complete requests in `received` and keep the bytes after them."""
        position, end = 0, len(received)
        host = self._host
        slice_ends, size_max = host.monotonic() + SLICE_S, self.request_bytes_max
        while end - position >= _LENGTH_BYTES:
            (size,) = _LENGTH.unpack_from(received, position)
            if not 0 < size <= size_max:
                raise ProtocolError(f"a request of {size} bytes; the size must be from 1 to {size_max}")
            start = position + _LENGTH_BYTES
            if self._must_wait():
                self._keep(received[position:])
                return
            if end - start < size:
                self._begin_frame(size, received[position:])
                return
            large = self._handle(received[start : start + size])
            if large is not None:
                large.frame = memoryview(bytes(large.frame))  # the next request is received into the same buffer
            position = start + size
            if position < end:
                self._busy_poller.forget(self)  # it does not wait for answers
            if end - position >= _LENGTH_BYTES and host.monotonic() > slice_ends:
                self._keep(received[position:])
                self._schedule_flush()
                return
        if position < end:
            self._kept = bytes(received[position:])
            self.frame_started = host.monotonic()

    def _begin_frame(self, size: int, part: memoryview) -> None:
        frame = self.buffers.take(size)
        if frame is None:
            self._keep(part)
            self._waits_for_buffer = True
            self.buffers.on_available(self._buffer_freed, size)
            return
        self.frame_started = self._host.monotonic()
        self._frame, self._frame_size, self._frame_filled = frame, size, len(part) - _LENGTH_BYTES
        frame[: self._frame_filled] = part[_LENGTH_BYTES:]

    def _buffer_freed(self) -> None:
        self._waits_for_buffer = False
        self._resume()

    def _keep(self, part: memoryview) -> None:
        self._kept = bytes(part)
        self._pause()

    def _drop_frame(self) -> None:
        self.frame_started = None
        if self._frame is not None:
            frame, self._frame = self._frame, None
            self.buffers.give_back(frame)

    def _must_wait(self) -> bool:
        unanswered = self._unanswered
        if unanswered and (unanswered[-1].is_at_work or len(unanswered) >= self._host.pipelined_requests_max):
            return True
        return (
            self._waits_for_buffer
            or self._unmuting is not None
            or self._unanswered_bytes + self._outbox.queued_bytes >= self._host.queued_response_bytes_max
            or (self.unsent.memory_bytes > 0 and self._unsent_total.is_too_much)
        )

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self.on_readable(None)

    def _resume(self) -> None:
        """Resume reading if no reason to pause is left; called whenever such a reason may have gone."""
        if self._closed or self._finishing or self._reading or self._must_wait():
            return
        self._reading = True
        if len(self._kept) >= _LENGTH_BYTES:
            kept, self._kept = self._kept, b""
            try:
                self._received(memoryview(kept))
            except ProtocolError as error:
                self.close(str(error))
            self._schedule_flush()
        if self._reading:
            self.on_readable(self._readable)

    def _muted(self) -> None:
        """Read nothing more until the session's mute is over, which has just begun or been prolonged."""
        if self._closed:
            return
        self._stop_unmuting()
        self._unmuting = self._host.call_later(self.session.muted_until_s - self._host.monotonic(), self._unmute)
        self._pause()

    def _unmute(self) -> None:
        self._unmuting = None
        self.last_received = now = self._host.monotonic()  # bytes that were not read while muted do not count as late
        if self.frame_started is not None:
            self.frame_started = now
        self._resume()

    def _stop_unmuting(self) -> None:
        if self._unmuting is not None:
            self._unmuting.cancel()
            self._unmuting = None

    # Answering

    def _handle(self, frame: memoryview) -> LargeAnswer | None:
        """Handle one request; return its answer if it is a large one, which still needs the frame."""
        answer = self.answer(frame, self.session)
        if answer is None:
            return None
        if isinstance(answer, list):
            size_bytes = self.unsent.add(answer)
            if not self._unanswered:
                self._outbox.put(answer, size_bytes)
                return None
            slot = Slot(answer)
            slot.size_bytes = size_bytes
            self._unanswered_bytes += size_bytes
        else:
            slot = Slot(answer, self._answered, self._schedule_flush)
        self._unanswered.append(slot)
        if isinstance(answer, Deferred) and isinstance(answer.outcome, LargeAnswer):
            return answer.outcome
        return None

    def _answered(self, slot: Slot) -> None:
        if self._closed:
            return
        if slot.failure is not None:
            self.close(slot.failure)
            return
        assert slot.chunks is not None
        slot.size_bytes = self.unsent.add(slot.chunks)
        self._unanswered_bytes += slot.size_bytes
        unanswered = self._unanswered
        while unanswered and (chunks := unanswered[0].chunks) is not None:
            size_bytes = unanswered.popleft().size_bytes
            self._unanswered_bytes -= size_bytes
            self._outbox.put(chunks, size_bytes)
        self._schedule_flush()

    def _schedule_flush(self) -> None:
        """Flush at the end of this iteration of the loop, so that all its answers are sent together."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._call_soon(self._flush)

    def _flush(self) -> None:
        """Send what the channel accepts; then close a finishing connection, or resume reading on a paused one."""
        self._flush_scheduled = False
        if self._closed:
            return
        self._outbox.flush()
        self.last_progress = self._host.monotonic()
        if self._finishing and not self.is_answering:
            self.close()
        elif not self._reading:
            self._resume()
        self._busy_poller.answered(self, self.last_progress)

    def _broken(self, error: Exception) -> None:
        if isinstance(error, UnreadableSlice):
            self._host.unreadable(error)
        quiet = isinstance(error, ConnectionError | TimeoutError)
        self.close("" if quiet else f"sending failed: {error}")
