"""Memory that responses are received into, used again: fresh memory costs a page fault for each 4 KB.

A buffer is free again when nobody holds a view of it any more. That is asked of the buffer itself, so whoever keeps a
view keeps its bytes, and the pool only loses a buffer by it.
"""

from __future__ import annotations

# One is used, one is received into, and one more for whoever reads two ranges in turn.
BUFFERS_KEPT_MAX = 3
# Below it fresh memory is as cheap.
POOLED_BYTES_MIN = 64 << 10


class ReceiveBuffers:
    def __init__(self, buffer_bytes: int) -> None:
        """Of one size; what is larger is not kept."""
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
    """A bytearray refuses to change its length while there are views of it."""
    try:
        buffer.pop()
    except BufferError:
        return False
    buffer.append(0)
    return True
