"""Resource usage of this process: memory, processor time, descriptors.

A value that the system does not provide is None: only Linux provides all of them.
"""

from __future__ import annotations

import os
import resource
from typing import NamedTuple

from flowstone.ports.system_files import open_files_limit

_PAGE_BYTES = resource.getpagesize()
_STATM, _DESCRIPTORS = "/proc/self/statm", "/proc/self/fd"


class ProcessFacts(NamedTuple):
    cpu_seconds: float
    resident_bytes: int | None
    open_descriptors: int | None
    descriptors_max: int


def process_facts() -> ProcessFacts:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return ProcessFacts(usage.ru_utime + usage.ru_stime, _resident_bytes(), _open_descriptors(), open_files_limit())


def _resident_bytes() -> int | None:
    try:
        with open(_STATM, "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except OSError:
        return None


def _open_descriptors() -> int | None:
    try:
        return len(os.listdir(_DESCRIPTORS)) - 1  # one of them is used for this query
    except OSError:
        return None
