"""Scans damaged frames and records that end where an unreadable page begins: one byte too far kills this process."""

from __future__ import annotations

import ctypes
import mmap
import random

import lz4.frame
import zstandard

from flowstone.kernel import frames_native, refused_records_native
from flowstone.wire.record_batch import HEADER_BYTES, Record, build_batch

ROUNDS = 20_000
NO_ACCESS = 0

area = mmap.mmap(-1, 2 * mmap.PAGESIZE)
start = ctypes.addressof(ctypes.c_char.from_buffer(area))
libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
if libc.mprotect(start + mmap.PAGESIZE, mmap.PAGESIZE, NO_ACCESS) != 0:
    raise OSError(ctypes.get_errno(), "mprotect")

randomness = random.Random(20260711)
content = bytes(range(256)) * 3
records = [Record(i, i * 1000, None if i % 2 else b"key", bytes(i)) for i in range(8)]
sources = [
    zstandard.ZstdCompressor(write_checksum=True).compress(content),
    zstandard.ZstdCompressor(write_content_size=False).compress(content),
    lz4.frame.compress(content, content_checksum=True, block_checksum=True),
    build_batch(records)[HEADER_BYTES:],
]
view = memoryview(area)
for _ in range(ROUNDS):
    good = randomness.choice(sources)
    damaged = bytearray(good[: randomness.randint(1, len(good))])
    for _ in range(randomness.randint(0, 3)):
        damaged[randomness.randrange(len(damaged))] = randomness.choice(
            (0x00, 0x7F, 0x80, 0xFF, randomness.randrange(256))
        )
    position = mmap.PAGESIZE - len(damaged)
    view[position : mmap.PAGESIZE] = damaged
    at_the_edge = view[position : mmap.PAGESIZE]
    frames_native.scan_zstd_frame(at_the_edge)
    frames_native.scan_lz4_frame(at_the_edge)
    refused_records_native.find_refused(
        view,
        position,
        len(damaged),
        len(records),
        needs_key=True,
        low_delta=0,
        high_delta=2000,
        exempt_delta=0,
        limit=randomness.randint(0, 5),
    )
