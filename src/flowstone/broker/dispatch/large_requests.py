"""Requests that are too large to be decoded, handled and answered in one time slice of the event loop.

They are decoded, and their responses encoded, in slices. Their bytes stay in the receive buffer until then. A decoded
request takes many times its bytes, so only `UNDER_WAY_BYTES_MAX` bytes of requests are decoded and handled at the same
time; others wait in order. A parked request (a fetch that waits for data, a join that waits for members) does not
count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from flowstone.broker.requests.chunks import Chunk
from flowstone.promise import Promise

# A request up to this size has too few elements to take long.
LARGE_REQUEST_BYTES = 16 * 1024
UNDER_WAY_BYTES_MAX = 16 << 20


class LargeAnswer(Promise[list[Chunk]]):
    """The answer to a large request, which is its connection's only work until it is made or parked."""

    __slots__ = ("_parked", "frame", "is_at_work", "on_decoded", "on_parked")

    def __init__(self, frame: memoryview) -> None:
        super().__init__()
        self.frame = frame
        self.is_at_work = True
        # Called when the frame can be dropped, and when the connection may handle its next request.
        self.on_decoded: Callable[[], None] | None = None
        self.on_parked: Callable[[], None] | None = None
        self._parked: Promise[Any] | None = None

    def decoded(self) -> None:
        """Drop the frame: the request is decoded, or will not be."""
        self.frame = memoryview(b"")
        if self.on_decoded is not None:
            on_decoded, self.on_decoded = self.on_decoded, None
            on_decoded()

    def park(self, response: Promise[Any]) -> None:
        """Record that the response waits for other events, so that the connection may resume reading."""
        self._parked, self.is_at_work = response, False
        if self.on_parked is not None:
            self.on_parked()

    def cancel(self) -> None:
        """Cancel the answer of a closed connection: a parked response too, but not a coroutine that has begun."""
        if self._parked is not None:
            self._parked.cancel()
        super().cancel()


class UnderWay:
    """The bytes of large requests that are being decoded and handled, limited by `UNDER_WAY_BYTES_MAX`."""

    def __init__(self) -> None:
        self._bytes = 0
        self._waiting: deque[tuple[int, Promise[None]]] = deque()

    async def enter(self, size_bytes: int) -> None:
        """Wait until the request's bytes fit `UNDER_WAY_BYTES_MAX`; a request alone always fits."""
        if not self._waiting and self._fits(size_bytes):
            self._bytes += size_bytes
            return
        freed: Promise[None] = Promise()
        self._waiting.append((size_bytes, freed))
        await freed

    def leave(self, size_bytes: int) -> None:
        self._bytes -= size_bytes
        while self._waiting and self._fits(self._waiting[0][0]):
            next_bytes, freed = self._waiting.popleft()
            self._bytes += next_bytes
            freed.set_result(None)

    def _fits(self, size_bytes: int) -> bool:
        return not self._bytes or self._bytes + size_bytes <= UNDER_WAY_BYTES_MAX
