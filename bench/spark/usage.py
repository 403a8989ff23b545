"""Processor time of a session's processes between two samples: the driver's JVM, planners, daemons, workers.

Spark's daemons never wait for the workers that they fork, so the time of an ended worker is not reported. A sum over
all processes would decrease when one ends; here each process is compared with itself. Linux only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# Of a process: its own seconds, and those of the children it has waited for.
Usage = dict[int, float]


def usage(*roots: int) -> Usage:
    """Return the processor time of these processes and all their living descendants."""
    parents, seconds = {}, {}
    for pid, parent, used_s in _processes():
        parents[pid], seconds[pid] = parent, used_s
    return {pid: used_s for pid, used_s in seconds.items() if _descends(pid, parents, roots)}


def spent_s(before: Usage, after: Usage) -> float:
    """Return the time used between two samples, except the last part of processes that ended in between."""
    return sum(used_s - before.get(pid, 0.0) for pid, used_s in after.items())


def _descends(pid: int, parents: dict[int, int], roots: tuple[int, ...]) -> bool:
    while pid and pid not in roots:
        pid = parents.get(pid, 0)
    return pid in roots


def _processes() -> Iterator[tuple[int, int, float]]:
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):  # a process that ended during the query
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                yield int(entry.name), int(fields[1]), sum(map(int, fields[11:15])) / ticks_per_s
