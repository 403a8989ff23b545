"""Builds records of damaged columns; they and the space for records end where an unreadable page begins."""

from __future__ import annotations

import ctypes
import mmap
import random
from contextlib import suppress
from typing import Any

import pyarrow as pa

from flowstone.kernel.batches import BadRow, BinaryInput, HeadersInput, Rows, Slots
from flowstone.kernel.batches_native import RecordBuilder, spread_rows

ROUNDS = 10_000
ROWS = 8
NO_ACCESS = 0

libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Guarded:
    """Memory whose end is the last byte before an unreadable page."""

    def __init__(self) -> None:
        self.area = mmap.mmap(-1, 2 * mmap.PAGESIZE)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.area))
        if libc.mprotect(self.start + mmap.PAGESIZE, mmap.PAGESIZE, NO_ACCESS) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")

    def put(self, data: bytes) -> Any:
        position = mmap.PAGESIZE - len(data)
        self.area[position : mmap.PAGESIZE] = data
        return pa.foreign_buffer(self.start + position, len(data), self)


randomness = random.Random(20240229)
areas = {name: Guarded() for name in ("offsets", "data", "header offsets", "header data", "lists")}
space = Guarded()
view = memoryview(space.area)
values = pa.array([bytes(i) for i in range(ROWS)])
texts = pa.array([b"h" * (i % 3) for i in range(ROWS)])


def damage(offsets: Any) -> bytes:
    numbers = list(memoryview(offsets).cast("B").cast("i"))[: ROWS + 1]
    for _ in range(randomness.randint(0, 2)):
        numbers[randomness.randrange(len(numbers))] = randomness.choice((-1, 0, 3, 29, 2**31 - 1, -(2**31)))
    return b"".join(number.to_bytes(4, "little", signed=True) for number in numbers)


for _ in range(ROUNDS):
    _, offsets, data = values.buffers()
    _, text_offsets, text = texts.buffers()
    value = BinaryInput(areas["offsets"].put(damage(offsets)), None, areas["data"].put(bytes(memoryview(data)[:28])))
    header = BinaryInput(
        areas["header offsets"].put(damage(text_offsets)), None, areas["header data"].put(bytes(memoryview(text)[:7]))
    )
    lists = areas["lists"].put(damage(pa.array(range(ROWS + 1), pa.int32()).buffers()[1]))
    rows = Rows(ROWS, value=value, key=value, headers=HeadersInput(lists, None, 0, ROWS, header, header))
    slots = Slots([1], [(0, 0)], 100)
    with suppress(BadRow):
        builder = RecordBuilder(rows, spread_rows(rows, slots), 0)
        capacity_bytes = randomness.randint(0, 200)
        out: Any = view[: mmap.PAGESIZE]
        first = 0
        while first < ROWS:
            first = builder.build(first, ROWS, out, mmap.PAGESIZE - capacity_bytes, capacity_bytes).next
