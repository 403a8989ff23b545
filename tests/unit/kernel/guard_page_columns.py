"""Decodes damaged payloads; they and every column end where an unreadable page begins: one byte too far kills this."""

from __future__ import annotations

import ctypes
import mmap
import random
from typing import Any

import pyarrow as pa

from flowstone.kernel.columns import Batch, Columns, Full
from flowstone.kernel.columns_native import decode_columns
from flowstone.wire.record_batch import HEADER_BYTES, Record, build_batch

ROUNDS = 20_000
ROWS = 8
NO_ACCESS = 0

libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
areas: list[mmap.mmap] = []


def guarded(size_bytes: int) -> Any:
    """A buffer whose last byte is the last one before an unreadable page."""
    area = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    if libc.mprotect(start + mmap.PAGESIZE, mmap.PAGESIZE, NO_ACCESS) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    areas.append(area)
    return pa.foreign_buffer(start + mmap.PAGESIZE - size_bytes, size_bytes, area)


randomness = random.Random(20240229)
records = [Record(i, i * 1000, b"key", bytes(i), (("h", b"v"), ("n", None))) for i in range(ROWS)]
good = build_batch(records)[HEADER_BYTES:]
payload_area = guarded(mmap.PAGESIZE)
view = memoryview(areas[0])
wanted = ("key", "value", "offset", "timestamp", "headers")
# From no space at all to more than enough: columns of each size are made once and filled again and again.
columns_of_sizes = [
    Columns(wanted, rows, dict.fromkeys(Full, size_bytes), guarded)
    for rows in (1, 7, ROWS)
    for size_bytes in (0, 9, 40)
]
for _ in range(ROUNDS):
    damaged = bytearray(good[: randomness.randint(1, len(good))])
    for _ in range(randomness.randint(0, 3)):
        damaged[randomness.randrange(len(damaged))] = randomness.choice(
            (0x00, 0x7F, 0x80, 0xFF, randomness.randrange(256))
        )
    position = mmap.PAGESIZE - len(damaged)
    view[position : mmap.PAGESIZE] = damaged
    columns = randomness.choice(columns_of_sizes)
    call = columns.call
    call.row_count = call.header_count = call.rows_without_headers = 0
    for column in columns.binaries.values():
        column.state.size_bytes = column.state.null_count = 0
    columns.begin(Batch(len(damaged), ROWS, 0, ROWS, 0, 0, 0, 1 << 62))
    decode_columns(payload_area, position, columns)
