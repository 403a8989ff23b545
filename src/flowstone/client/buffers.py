"""Memory that responses are received into, used again: fresh memory costs a page fault for each 4 KB.

A buffer is free again when nobody holds a view of it any more. That is asked of the buffer itself, so whoever keeps a
view keeps its bytes, and the pool only loses a buffer by it.
"""

from __future__ import annotations

# Enough for one range being received while another is used.
BUFFERS_KEPT_MAX = 4
BUFFER_BYTES_MIN = 64 << 10


class ReceiveBuffers:
    def __init__(self, kept_bytes_max: int) -> None:
        """Buffers above `kept_bytes_max` are not kept."""
        self._kept_bytes_max = kept_bytes_max
        self._buffers: list[bytearray] = []

    def take(self, size_bytes: int) -> memoryview:
        for buffer in self._buffers:
            if len(buffer) >= size_bytes and _is_free(buffer):
                return memoryview(buffer)[:size_bytes]
        # Powers of two: a later response that is a little longer fits too.
        buffer = bytearray(max(BUFFER_BYTES_MIN, 1 << (size_bytes - 1).bit_length()))
        if len(buffer) <= self._kept_bytes_max:
            self._buffers.append(buffer)
            del self._buffers[:-BUFFERS_KEPT_MAX]
        return memoryview(buffer)[:size_bytes]


def _is_free(buffer: bytearray) -> bool:
    """A bytearray refuses to change its length while there are views of it."""
    try:
        buffer.pop()
    except BufferError:
        return False
    buffer.append(0)
    return True
