"""Memory allocated from and returned to the operating system.

A large buffer uses memory only as it is written: a request that announces a large size costs nothing yet. This is
anonymous memory, not a mapped file, so the rule against mapping files is kept.
"""

from __future__ import annotations

import ctypes
import mmap


def lazy_buffer(size_bytes: int) -> memoryview:
    """Return a writable buffer of zeros whose pages are allocated on first use, unlike a bytearray's."""
    return memoryview(mmap.mmap(-1, size_bytes))


# mallopt's parameters, by glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# Blocks of this size or more are mapped separately and returned to the system when freed. Above the largest batch
# that topics accept by default: mapping new memory for each batch would cost more than the copy.
MAPPED_BYTES_MIN = 2 << 20
# Free memory at the end of the heap beyond which the heap is shrunk.
TRIMMED_BYTES_MIN = 8 << 20


def return_freed_blocks() -> bool:
    """Make glibc return freed memory to the system; return whether the allocator supports it.

    By default glibc raises both thresholds up to 32 and 64 MiB after large blocks were freed. Large blocks are then
    placed on the heap between small ones that stay, and hundreds of megabytes remain allocated unused.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN) and mallopt(_M_TRIM_THRESHOLD, TRIMMED_BYTES_MIN))
