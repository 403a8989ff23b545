"""Process-wide changes by `flowstone up`: garbage collection and the limit on open files.

An embedded broker makes no such changes, because the process belongs to another program.
"""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterator
from contextlib import contextmanager

# A full collection walks every object of the broker. `gc.freeze` excludes the objects created at start, and
# these thresholds make further full collections rare: a broker creates little cyclic garbage. A collection of the
# middle generation walks what a few young ones have left, which takes a few milliseconds. After fifty young ones it
# would hold the event loop for 150 ms while topics or members are created by the thousands. Young ones that are
# smaller, and more of them, walk the same objects in shorter stretches.
GC_THRESHOLDS = (10_000, 2, 12_500)
# Some systems report "no limit" although a descriptor table of that size is not possible.
OPEN_FILES_MAX = 1 << 20


@contextmanager
def collector_paused() -> Iterator[None]:
    """Disable garbage collection inside the block; afterwards exclude all existing objects from it.

    No collection runs first: a start leaves only about 600 garbage objects, and finding them takes 10 ms.
    """
    gc.disable()
    try:
        yield
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
    finally:
        gc.enable()


def raise_open_files_limit() -> int:
    """Raise the soft limit on descriptors to the hard limit if possible; return the resulting limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # macOS refuses more than kern.maxfilesperproc: the soft limit stays
            return soft
        return wanted
    return soft
