"""The unsent chunks of a connection: bytes, and slices of files that are sent without passing through Python.

A slice is checked against the page cache just before it is sent, not when the response was made: with a slow reader
minutes may pass between the two. Bytes that are not cached are read by a worker first, so that the loop never waits for
the disk.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from flowstone.broker.network.unsent_bytes import Unsent
from flowstone.broker.requests.chunks import Chunk, FileSlice
from flowstone.log.segments.cached_reads import bring_in
from flowstone.ports.files import IOVECS_MAX, File
from flowstone.ports.network import SEND_FILE_BYTES_MAX, Channel
from flowstone.types import Bytes

# A constant: a union written in an isinstance call is created by each call.
_IN_MEMORY = (bytes, bytearray, memoryview)

# Bytes that one connection may send in one iteration of the loop.
SLICE_BYTES = 2 << 20
# A slice up to this size is read and sent together with its neighbours: one system call instead of four.
SMALL_SLICE_BYTES = 8 << 10
# With so many bytes to send no more small slices are read: the channel may accept none of them now.
SMALL_SLICES_BYTES_MAX = 64 << 10


class UnreadableSlice(Exception):
    """Raised when a log file does not have the bytes that a response refers to."""

    def __init__(self, file: File, reason: object) -> None:
        super().__init__(f"{file.path} cannot be read: {reason}")
        self.file = file


class Outbox:
    def __init__(
        self,
        channel: Channel,
        unsent: Unsent,
        read: Callable[[Callable[[], object]], asyncio.Future[object]],
        on_sendable: Callable[[], None],
        on_broken: Callable[[Exception], None],
    ) -> None:
        """Create an empty outbox for `channel`. Its chunks are counted in `unsent` until they are sent."""
        self._channel, self._unsent, self._read = channel, unsent, read
        self._on_sendable, self._on_broken = on_sendable, on_broken
        self._chunks: deque[Chunk] = deque()
        self.queued_bytes = 0
        self._waiting = False
        # For a slice at the head: bytes of it already sent, and up to where it is known to be in the page cache.
        self._slice_sent = 0
        self._slice_warm = 0

    def put(self, chunks: list[Chunk], size_bytes: int) -> None:
        """Append the chunks of a response; `size_bytes` is the sum of their lengths."""
        self._chunks.extend(chunks)
        self.queued_bytes += size_bytes

    def flush(self) -> None:
        """Send what the channel accepts now; `on_sendable` is called when it accepts more."""
        if self._waiting or not self._chunks:
            return
        slice_ends_at = self.queued_bytes - SLICE_BYTES
        try:
            while self._chunks and not self._waiting:
                if self.queued_bytes < slice_ends_at:
                    raise BlockingIOError  # a fast reader must not hold the loop: other connections are served first
                head = self._chunks[0]
                if isinstance(head, _IN_MEMORY):
                    self._send_bytes(head)
                else:
                    self._send_slice(head)
        except BlockingIOError:
            self._waiting = True
            self._channel.on_writable(self._writable)
        except (OSError, UnreadableSlice) as error:
            self._broken(error)

    def clear(self) -> None:
        self._chunks.clear()
        self.queued_bytes = 0
        self._waiting = True

    def close(self) -> None:
        """Drop what is unsent and the callbacks, so that a closed connection is freed without the garbage collector."""
        self.clear()
        self._on_sendable = self._on_broken = _ignore

    def _writable(self) -> None:
        self._channel.on_writable(None)
        self._waiting = False
        self._on_sendable()

    def _send_bytes(self, first: Bytes) -> None:
        run, slice_follows = self._run_of_bytes() if len(self._chunks) > 1 else ([first], False)
        sent = self._channel.send(run, more=slice_follows)
        self.queued_bytes -= sent
        self._unsent.change(-sent, 0)
        if not self.queued_bytes:
            self._chunks.clear()
            return
        while sent:
            head = self._chunks[0]
            assert isinstance(head, _IN_MEMORY)
            if sent < len(head):
                self._chunks[0] = memoryview(head)[sent:]
                raise BlockingIOError
            sent -= len(head)
            self._chunks.popleft()
        while self._chunks and not len(self._chunks[0]):
            self._chunks.popleft()

    def _run_of_bytes(self) -> tuple[list[Bytes], bool]:
        """Return the chunks at the head that are in memory, small slices among them, and whether a slice follows."""
        run: list[Bytes] = []
        left_bytes = SMALL_SLICES_BYTES_MAX
        for at in range(min(len(self._chunks), IOVECS_MAX)):
            chunk = self._chunks[at]
            left_bytes -= len(chunk)
            if not isinstance(chunk, _IN_MEMORY):
                is_small = len(chunk) <= SMALL_SLICE_BYTES and left_bytes >= 0 and not self._slice_sent
                small = self._read_small(chunk) if is_small else None
                if small is None:
                    return run, True
                self._chunks[at] = chunk = small
            run.append(chunk)
        return run, False

    def _read_small(self, chunk: FileSlice) -> bytes | None:
        """Return the bytes of a small slice, or None if they are not all in the page cache."""
        try:
            data = chunk.file.read_cached(chunk.position, len(chunk))
        except OSError as error:
            raise UnreadableSlice(chunk.file, error) from error
        if data is None or len(data) < len(chunk):
            return None
        self._unsent.change(0, -1)
        self._unsent.add([data])
        return data

    def _send_slice(self, chunk: FileSlice) -> None:
        position = chunk.position + self._slice_sent
        count = min(len(chunk) - self._slice_sent, SEND_FILE_BYTES_MAX)
        if self._slice_warm < self._slice_sent + count and not chunk.file.is_cached(position, count):
            self._warm(chunk.file, position, count)
            return
        try:
            sent = self._channel.send_file(chunk.file, position, count)
        except (BlockingIOError, ConnectionError, TimeoutError):
            raise
        except OSError as error:
            raise UnreadableSlice(chunk.file, error) from error
        if not sent:
            raise UnreadableSlice(chunk.file, f"it ends before byte {position}")
        self.queued_bytes -= sent
        self._slice_sent += sent
        if self._slice_sent == len(chunk):
            self._chunks.popleft()
            self._unsent.change(0, -1)
            self._slice_sent = self._slice_warm = 0

    def _warm(self, file: File, position: int, count: int) -> None:
        self._waiting = True
        self._slice_warm = self._slice_sent + count
        future = self._read(lambda: bring_in(file, position, count))
        future.add_done_callback(partial(self._warmed, file))

    def _warmed(self, file: File, future: asyncio.Future[object]) -> None:
        error = None if future.cancelled() else future.exception()
        if not self._chunks:
            return
        if error is not None:
            self._broken(UnreadableSlice(file, error))
            return
        self._waiting = False
        self._on_sendable()

    def _broken(self, error: Exception) -> None:
        self.clear()
        self._on_broken(error)


def _ignore(*_: object) -> None:
    """Do nothing: the connection is closed."""
