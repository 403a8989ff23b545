"""One client connection: bytes in, whole requests to the server, answers back in the order of the requests.

Requests are handled where their bytes were received: all connections of a loop share one receive buffer, since a
handler is done with the bytes when it returns. Only a request that is not complete yet gets a buffer of its own, of
the size its length prefix names, and the rest of it is received straight into that.

Reading pauses while too many requests wait for answers, too many response bytes wait to be taken, or the buffer pool is
exhausted: whoever does not read is not read from, and sooner where all connections together leave too much. It also
pauses while a coroutine works on an answer, so that a topic made by one request is there for the next one, and nobody
can have many such answers made at once.
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
from flowstone.broker.network.busy_poll import LockStep
from flowstone.broker.network.outbox import Outbox, UnreadableSlice
from flowstone.broker.network.receive_buffers import BufferPool
from flowstone.broker.network.unsent_bytes import Unsent, UnsentTotal
from flowstone.errors import ProtocolError
from flowstone.ports.network import Channel
from flowstone.ports.replies import Reply

RECEIVE_BYTES = 256 * 1024
READS_PER_WAKEUP_MAX = 4
# How long one connection's requests are handled before others have their turn: thousands may be received at once.
TURN_S = 0.01
_LENGTH = struct.Struct(">i")
_LENGTH_BYTES = 4


class Host(Protocol):
    """What a connection needs of its server."""

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
    def lock_step(self) -> LockStep: ...

    @property
    def lent(self) -> set[Reply]:
        """Answers of any connection that are in other hands."""
        ...

    def monotonic(self) -> float: ...

    def read(self, function: Callable[[], object]) -> asyncio.Future[object]:
        """Runs a function that waits for the disk in a worker."""
        ...

    @property
    def answer(self) -> Callable[[memoryview, str, str], Answer]:
        """Handles one request, by its frame, listener name and peer. ProtocolError closes the connection."""
        ...

    def unreadable(self, slice_error: UnreadableSlice) -> None:
        """What a response promised cannot be read: its partition has a fault."""
        ...

    def closed(self, connection: Connection, reason: str) -> None: ...


class Connection:
    def __init__(self, host: Host, channel: Channel, listener_name: str) -> None:
        self.peer, self.listener_name = channel.peer, listener_name
        self._host, self._channel = host, channel
        self._answer, self._lock_step = host.answer, host.lock_step
        self._call_soon = asyncio.get_running_loop().call_soon  # to ask for the loop is a system call each time
        self.unsent, self._unsent_total = Unsent(host.unsent), host.unsent
        self._outbox = Outbox(channel, self.unsent, host.read, self._progress, self._broken)
        # Requests whose answers are not in the outbox yet, in order; an answer waits here for those before it.
        self._unanswered: deque[Slot] = deque()
        self._unanswered_bytes = 0
        # Received bytes that cannot be handled now: the start of a length prefix, or requests while reading pauses.
        self._kept = b""
        self._frame: memoryview | None = None
        self._frame_size = self._frame_filled = 0
        self._reading = self._finishing = self._closed = self._flush_scheduled = self._waits_for_room = False
        self.last_received = self.last_progress = host.monotonic()
        self.frame_started: float | None = None
        self._resume()

    @property
    def is_answering(self) -> bool:
        return bool(self._unanswered) or self._outbox.queued_bytes > 0

    @property
    def is_finishing(self) -> bool:
        return self._finishing

    @property
    def is_unread(self) -> bool:
        """Whether the client has left bytes of an answer untaken. An answer that was not sent yet does not count."""
        return self._outbox.queued_bytes > 0 and not self._flush_scheduled

    def is_slower_than(self, bytes_per_s: int, now: float) -> bool:
        """Whether the request that is arriving is late, after a second's grace, at this rate."""
        if self._frame is None or self.frame_started is None:
            return False
        return now - self.frame_started > 1 + self._frame_filled / bytes_per_s

    def look_again(self) -> None:
        """Reads without having been called: uvloop tells of a reset once, maybe with the last bytes, and no more."""
        if self._reading:
            self._readable()

    def close(self, reason: str = "") -> None:
        if self._closed:
            return
        self._closed = True
        self._reading = False
        self._drop_frame()
        self._outbox.close()
        self.unsent.clear()
        for slot in self._unanswered:
            slot.cancel()
            self._settled(slot)
        self._unanswered.clear()
        self._unanswered_bytes = 0
        self._kept = b""
        self._lock_step.forget(self)
        self._channel.close()
        self._host.closed(self, reason)

    def finish(self) -> None:
        """Reads nothing more and closes once what was asked has been answered."""
        self._finishing = True
        self._pause()
        self._drop_frame()
        if not self.is_answering:
            self.close()

    # Reading

    def _readable(self) -> None:
        if self._host.lent:
            self._look_at_lent_replies()
            if not self._reading:  # what it heard may have closed it
                return
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
        self._lock_step.asked(self, now)
        if self._must_wait():
            self._pause()
        elif not self._flush_scheduled:
            self._resume()

    def _look_at_lent_replies(self) -> None:
        """Have the loop learn which replies flush threads have sent, before the next request is handled."""
        for reply in tuple(self._host.lent):
            reply.look()

    def _receive(self) -> bool:
        """Receives into the shared buffer and handles what is there; whether there may be more at once."""
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
        """Receives into the incomplete request's own buffer; whether it is whole now, and so more may follow."""
        count = self._channel.receive_into(frame[self._frame_filled : self._frame_size])
        if not count:
            raise EOFError
        self._frame_filled += count
        if self._frame_filled < self._frame_size:
            return False
        self._frame = self.frame_started = None
        large = None
        try:
            large = self._handle(frame[: self._frame_size])
        finally:
            if large is None:
                self._host.buffers.give_back(frame)
        if large is not None:
            large.on_decoded = partial(self._host.buffers.give_back, frame)
        return True

    def _received(self, received: memoryview) -> None:
        """Handles the whole requests in `received` and keeps what is left."""
        position, end = 0, len(received)
        host = self._host
        turn_ends, size_max = host.monotonic() + TURN_S, host.request_bytes_max
        while end - position >= _LENGTH_BYTES:
            (size,) = _LENGTH.unpack_from(received, position)
            if not 0 < size <= size_max:
                raise ProtocolError(f"a request of {size} bytes; from 1 to {size_max} are taken")
            start = position + _LENGTH_BYTES
            if self._must_wait():
                self._keep(received[position:])
                return
            if end - start < size:
                self._begin_frame(size, received[position:])
                return
            large = self._handle(received[start : start + size])
            if large is not None:
                large.frame = memoryview(bytes(large.frame))  # the next request is received where it lies
            position = start + size
            if position < end:
                self._lock_step.forget(self)  # it does not wait for answers
            if end - position >= _LENGTH_BYTES and host.monotonic() > turn_ends:
                self._keep(received[position:])
                self._schedule_flush()
                return
        if position < end:
            self._kept = bytes(received[position:])
            self.frame_started = host.monotonic()

    def _begin_frame(self, size: int, part: memoryview) -> None:
        frame = self._host.buffers.take(size)
        if frame is None:
            self._keep(part)
            self._waits_for_room = True
            self._host.buffers.on_room(self._room, size)
            return
        self.frame_started = self._host.monotonic()
        self._frame, self._frame_size, self._frame_filled = frame, size, len(part) - _LENGTH_BYTES
        frame[: self._frame_filled] = part[_LENGTH_BYTES:]

    def _room(self) -> None:
        self._waits_for_room = False
        self._resume()

    def _keep(self, part: memoryview) -> None:
        self._kept = bytes(part)
        self._pause()

    def _drop_frame(self) -> None:
        self.frame_started = None
        if self._frame is not None:
            frame, self._frame = self._frame, None
            self._host.buffers.give_back(frame)

    def _must_wait(self) -> bool:
        unanswered = self._unanswered
        if unanswered and (unanswered[-1].is_at_work or len(unanswered) >= self._host.pipelined_requests_max):
            return True
        return (
            self._waits_for_room
            or self._unanswered_bytes + self._outbox.queued_bytes >= self._host.queued_response_bytes_max
            or (self.unsent.memory_bytes > 0 and self._unsent_total.is_too_much)
        )

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self._channel.on_readable(None)

    def _resume(self) -> None:
        """Goes on reading where nothing speaks against it; called when something that did may be gone."""
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
            self._channel.on_readable(self._readable)

    # Answering

    def _handle(self, frame: memoryview) -> LargeAnswer | None:
        """Returns the answer if it still needs the frame."""
        answer = self._answer(frame, self.listener_name, self.peer)
        if answer is None:
            return None
        if isinstance(answer, list):
            size_bytes = self.unsent.add(answer)
            if not self._unanswered:
                self._outbox.put(answer, size_bytes)
                return None
            slot = Slot(answer, size_bytes)
            self._unanswered_bytes += size_bytes
        else:
            slot = Slot()
            slot.wait_for(answer, self._answered, self._schedule_flush)
            if answer.send_early is not None and self._lock_step.is_with(self):
                self._lend(slot, answer.send_early)
        self._unanswered.append(slot)
        if isinstance(answer, Deferred) and isinstance(answer.outcome, LargeAnswer):
            return answer.outcome
        return None

    def _lend(self, slot: Slot, send_early: Callable[[int], Reply | None]) -> None:
        """With nothing to send before it, an answer may leave without the loop."""
        descriptor = self._channel.descriptor
        if descriptor is None or self.is_answering:
            return
        slot.reply = send_early(descriptor)
        if slot.reply is not None:
            self._host.lent.add(slot.reply)

    def _settled(self, slot: Slot) -> None:
        if slot.reply is not None:
            self._host.lent.discard(slot.reply)

    def _answered(self, slot: Slot) -> None:
        self._settled(slot)
        if self._closed:
            return
        if slot.failure is not None:
            self.close(slot.failure)
            return
        assert slot.chunks is not None
        if slot.reply is not None:  # the next request may be here already
            self._lock_step.answered(self, self._host.monotonic())
        slot.size_bytes = self.unsent.add(slot.chunks)
        self._unanswered_bytes += slot.size_bytes
        unanswered = self._unanswered
        while unanswered and (chunks := unanswered[0].chunks) is not None:
            size_bytes = unanswered.popleft().size_bytes
            self._unanswered_bytes -= size_bytes
            self._outbox.put(chunks, size_bytes)
        self._schedule_flush()

    def _schedule_flush(self) -> None:
        """Answers that become ready in the same turn of the loop leave together."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if not self._closed:
            self._outbox.flush()
            self._progress()
            self._lock_step.answered(self, self.last_progress)

    def _progress(self) -> None:
        self.last_progress = self._host.monotonic()
        if self._finishing and not self.is_answering:
            self.close()
        self._resume()

    def _broken(self, error: Exception) -> None:
        if isinstance(error, UnreadableSlice):
            self._host.unreadable(error)
        quiet = isinstance(error, ConnectionError | TimeoutError)
        self.close("" if quiet else f"sending failed: {error}")
