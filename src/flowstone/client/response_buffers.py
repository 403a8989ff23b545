"""Reusable receive buffers: new memory costs a page fault for each 4 KB.

A buffer is free again when no view of it exists any more. The buffer itself is checked, so a view that is held keeps
its bytes valid, and the pool is only one buffer smaller.
"""

from __future__ import annotations

# One is in use, one is received into, and one more if the caller reads two ranges in turn.
BUFFERS_KEPT_MAX = 3
# For fewer bytes new memory is as cheap.
POOLED_BYTES_MIN = 64 << 10


class ReceiveBuffers:
    def __init__(self, buffer_bytes: int) -> None:
        """Create a pool of buffers of one size; larger ones are not kept."""
        self._buffer_bytes = buffer_bytes
        self._buffers: list[bytearray] = []

    def take(self, size_bytes: int) -> memoryview:
        if POOLED_BYTES_MIN <= size_bytes <= self._buffer_bytes:
            for buffer in self._buffers:
                if _is_free(buffer):
                    return memoryview(buffer)[:size_bytes]
            if len(self._buffers) < BUFFERS_KEPT_MAX:
                self._buffers.append(bytearray(self._buffer_bytes))
                return memoryview(self._buffers[-1])[:size_bytes]
        return memoryview(bytearray(size_bytes))


def _is_free(buffer: bytearray) -> bool:
    """Return whether no view of the buffer exists: a bytearray refuses to change its length while there are any."""
    try:
        buffer.pop()
    except BufferError:
        return False
    buffer.append(0)
    return True
