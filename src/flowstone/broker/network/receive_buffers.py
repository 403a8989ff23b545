"""Memory for requests that arrive in pieces.

A request that is complete in the shared receive buffer is handled there. An incomplete one gets a buffer of its own
from this pool, whose total size is limited by `queued.max.request.bytes`: beyond it `take` returns None, and the
connection stops reading until it is called back by `on_available`. The smallest requests are called back first, so that
many connections that announce large requests and send little do not block ordinary ones. Freed buffers are kept for
reuse up to a limit: touching fresh memory for every large request costs more than receiving it.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter

from flowstone.ports.memory import lazy_buffer

KEPT_BYTES_MAX = 32 << 20
CLASS_BYTES_MIN = 4096
# A buffer from this size on is backed by memory only as bytes arrive: a client may announce a length and send nothing.
LAZY_BYTES_MIN = 4 << 20


class BufferPool:
    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._taken_bytes = 0
        self._kept_bytes = 0
        self._kept: dict[int, list[memoryview]] = {}
        # The bytes that each waiting connection needs, and its callback.
        self._waiting: list[tuple[int, Callable[[], None]]] = []

    @property
    def taken_bytes(self) -> int:
        return self._taken_bytes

    @property
    def is_short(self) -> bool:
        """Return whether a request waits for memory."""
        return bool(self._waiting)

    def take(self, size_bytes: int) -> memoryview | None:
        """Return a buffer of at least `size_bytes`, or None if the pool is used up. One request is always served."""
        size_class = _size_class(size_bytes)
        if self._taken_bytes and self._taken_bytes + size_class > self._limit_bytes:
            return None
        self._taken_bytes += size_class
        kept = self._kept.get(size_class)
        if kept:
            self._kept_bytes -= size_class
            return kept.pop()
        return lazy_buffer(size_class) if size_class >= LAZY_BYTES_MIN else memoryview(bytearray(size_class))

    def give_back(self, buffer: memoryview, *, is_free: bool = True) -> None:
        """Stop counting a buffer. A free buffer is kept for reuse; otherwise the request in it owns it."""
        size_class = len(buffer)
        self._taken_bytes -= size_class
        assert self._taken_bytes >= 0
        if is_free and self._kept_bytes + size_class <= KEPT_BYTES_MAX:
            self._kept_bytes += size_class
            self._kept.setdefault(size_class, []).append(buffer)
        # Each waiting connection tries again once; without success it queues up again, behind the others.
        waiting, self._waiting = self._waiting, []
        for _, callback in sorted(waiting, key=itemgetter(0)):
            callback()

    def on_available(self, callback: Callable[[], None], size_bytes: int = 0) -> None:
        """Call back once, when `size_bytes` may be available."""
        self._waiting.append((size_bytes, callback))


def _size_class(size_bytes: int) -> int:
    """Return the next power of two, or three quarters of it: few distinct sizes, at most a third of each unused."""
    size_class = max(CLASS_BYTES_MIN, 1 << (size_bytes - 1).bit_length())
    three_quarters = size_class // 4 * 3
    return three_quarters if CLASS_BYTES_MIN < size_bytes <= three_quarters else size_class
