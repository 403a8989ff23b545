"""Memory for columns: used again when nobody holds it, and only then."""

from __future__ import annotations

import pyarrow as pa

from flowstone.arrow.memory import KEPT_BYTES_MAX, Memory

SIZE_BYTES = 1 << 20


def test_memory_that_nobody_holds_is_used_again() -> None:
    memory = Memory()
    first = memory.allocate(SIZE_BYTES)
    address = first.address
    del first
    assert memory.allocate(SIZE_BYTES - 100).address == address


def test_memory_of_an_array_that_somebody_holds_is_left_alone() -> None:
    memory = Memory()
    buffer = memory.allocate(SIZE_BYTES)
    memoryview(buffer).cast("B")[:8] = (7).to_bytes(8, "little")
    array = pa.Array.from_buffers(pa.int64(), 1, [None, buffer])
    del buffer
    memoryview(memory.allocate(SIZE_BYTES)).cast("B")[:8] = bytes(8)
    assert array.to_pylist() == [7]


def test_a_buffer_has_the_size_that_was_asked_for_and_can_be_written_to() -> None:
    buffer = Memory().allocate(SIZE_BYTES + 5)
    assert buffer.size == SIZE_BYTES + 5
    assert not memoryview(buffer).readonly


def test_more_may_be_taken_than_is_kept() -> None:
    memory = Memory()
    taken = [memory.allocate(KEPT_BYTES_MAX // 2) for _ in range(4)]
    assert len({buffer.address for buffer in taken}) == 4
