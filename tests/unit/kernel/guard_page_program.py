"""Checks damaged payloads that end exactly where an unreadable page begins: one byte too far kills this process."""

from __future__ import annotations

import ctypes
import mmap
import random

from flowstone.kernel import native
from flowstone.wire.record_batch import HEADER_BYTES, Record, build_batch

ROUNDS = 20_000
NO_ACCESS = 0

area = mmap.mmap(-1, 2 * mmap.PAGESIZE)
start = ctypes.addressof(ctypes.c_char.from_buffer(area))
libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
if libc.mprotect(start + mmap.PAGESIZE, mmap.PAGESIZE, NO_ACCESS) != 0:
    raise OSError(ctypes.get_errno(), "mprotect")

randomness = random.Random(20240229)
records = [Record(i, i * 1000, b"key", bytes(i), (("h", b"v"), ("n", None))) for i in range(8)]
good = build_batch(records)[HEADER_BYTES:]
view = memoryview(area)
for _ in range(ROUNDS):
    damaged = bytearray(good[: randomness.randint(1, len(good))])
    for _ in range(randomness.randint(0, 3)):
        damaged[randomness.randrange(len(damaged))] = randomness.choice(
            (0x00, 0x7F, 0x80, 0xFF, randomness.randrange(256))
        )
    position = mmap.PAGESIZE - len(damaged)
    view[position : mmap.PAGESIZE] = damaged
    native.check_records(view, position, len(damaged), len(records))
    native.find_timestamp(view, position, len(damaged), len(records), 0, 1 << 62)
