"""Pool of reusable buffers for columns and decompressed data: fresh memory costs a page fault per 4 KB.

In Spark's workers, clearing fresh pages took more time than copying the records into them. A buffer is free again when
nobody refers to it or to an array made of it. The pool asks the buffer itself, so a caller that keeps a RecordBatch
keeps its rows, and only the pool has one buffer less.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

# A Spark task holds three RecordBatches: its first one, the one being written and the one being filled.
KEPT_BYTES_MAX = 64 << 20
# Below this size, fresh memory is as cheap.
POOLED_BYTES_MIN = 64 << 10


class Memory:
    """A buffer pool for one thread at a time."""

    def __init__(self) -> None:
        self._kept: list[bytearray] = []
        self._kept_bytes = 0

    def allocate(self, size_bytes: int) -> Any:
        """Return a `pyarrow.Buffer` of this size with undefined content."""
        if size_bytes < POOLED_BYTES_MIN:
            return pa.allocate_buffer(size_bytes)
        # Only few sizes, so that slightly larger columns can reuse the buffers of earlier ones.
        capacity_bytes = 1 << (size_bytes - 1).bit_length()
        block = next((each for each in self._kept if len(each) == capacity_bytes and _is_free(each)), None)
        if block is None:
            if self._kept_bytes + capacity_bytes > KEPT_BYTES_MAX:
                return pa.allocate_buffer(size_bytes)
            block = bytearray(capacity_bytes)
            self._kept.append(block)
            self._kept_bytes += capacity_bytes
        return pa.py_buffer(memoryview(block)[:size_bytes])


def _is_free(block: bytearray) -> bool:
    """Return whether nobody refers to the block: a bytearray cannot be resized while it has views."""
    try:
        block.pop()
    except BufferError:
        return False
    block.append(0)
    return True
