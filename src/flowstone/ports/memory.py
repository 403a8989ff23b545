"""Large buffers whose memory is taken only as it is written to: a length that was only promised costs nothing.

This is anonymous memory, no file: the rule against mapping files stands.
"""

from __future__ import annotations

import mmap


def lazy_buffer(size_bytes: int) -> memoryview:
    """A writable buffer of zeros; unlike a bytearray's, its pages are not touched before they are used."""
    return memoryview(mmap.mmap(-1, size_bytes))
