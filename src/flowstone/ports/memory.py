"""Memory as the operating system gives and takes it back.

Large buffers whose memory is taken only as it is written to: a length that was only promised costs nothing. This is
anonymous memory, no file: the rule against mapping files stands.
"""

from __future__ import annotations

import ctypes
import mmap


def lazy_buffer(size_bytes: int) -> memoryview:
    """A writable buffer of zeros; unlike a bytearray's, its pages are not touched before they are used."""
    return memoryview(mmap.mmap(-1, size_bytes))


# mallopt's parameters, by glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# From this size on a block is mapped by itself and goes back to the system when it is freed. Above the largest batch
# that topics take by default: mapping memory anew for each batch would cost more than the copy.
MAPPED_BYTES_MIN = 2 << 20
# Free memory at the end of the heap beyond which the heap is made shorter.
TRIMMED_BYTES_MIN = 8 << 20


def return_freed_blocks() -> bool:
    """Have the allocator give freed memory back to the system; return whether the allocator can be told so (glibc).

    By itself glibc raises both limits up to 32 and 64 MiB once large blocks have been freed. Large blocks then lie on
    the heap between small ones that stay, and hundreds of megabytes are kept although nobody uses them.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN) and mallopt(_M_TRIM_THRESHOLD, TRIMMED_BYTES_MIN))
