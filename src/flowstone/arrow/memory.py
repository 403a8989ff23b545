"""Memory for columns and for what is decompressed, used again: fresh memory costs a page fault for each 4 KB.

Measured in Spark's workers, clearing fresh pages took more time than copying the records into them. A buffer is free
again when nobody holds it or an array made of it any more. That is asked of the buffer itself, so whoever keeps a
RecordBatch keeps its rows, and only the pool loses by it.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

# A task of Spark's holds three RecordBatches at a time: its first, the one that is written, the one that is filled.
KEPT_BYTES_MAX = 64 << 20
# Below it fresh memory is as cheap.
POOLED_BYTES_MIN = 64 << 10


class Memory:
    """For one thread at a time."""

    def __init__(self) -> None:
        self._kept: list[bytearray] = []
        self._kept_bytes = 0

    def allocate(self, size_bytes: int) -> Any:
        """A `pyarrow.Buffer` of this size; what it holds at first is not defined."""
        if size_bytes < POOLED_BYTES_MIN:
            return pa.allocate_buffer(size_bytes)
        # Of few sizes, so that columns that grow a little find what the ones before them left.
        capacity_bytes = 1 << (size_bytes - 1).bit_length()
        for block in self._kept:
            if len(block) == capacity_bytes and _is_free(block):
                return _part(block, size_bytes)
        if self._kept_bytes + capacity_bytes > KEPT_BYTES_MAX:
            return pa.allocate_buffer(size_bytes)
        self._kept.append(bytearray(capacity_bytes))
        self._kept_bytes += capacity_bytes
        return _part(self._kept[-1], size_bytes)


def _part(block: bytearray, size_bytes: int) -> Any:
    return pa.py_buffer(memoryview(block)[:size_bytes])


def _is_free(block: bytearray) -> bool:
    """A bytearray refuses to change its length while there are views of it."""
    try:
        block.pop()
    except BufferError:
        return False
    block.append(0)
    return True
