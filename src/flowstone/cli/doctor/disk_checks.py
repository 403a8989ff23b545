"""The checks of `flowstone doctor` on a data directory: free space, file system, and the time of a flush.

Flush times are measured with a small temporary file. If the directory does not exist yet, its nearest existing parent
is checked, and nothing is created.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time

from flowstone.cli.doctor.checks import Finding, Status
from flowstone.config import GIB, KIB, MIB
from flowstone.ports.system_files import SystemFile, SystemFiles

FREE_BYTES_MIN = GIB
PROBE_FLUSHES = 20
PROBE_BYTES = 4 * KIB
FLUSH_SLOW_MS = 20.0
PROBE_PREFIX = ".flowstone-doctor-"
# File systems on which flushes or locks are not reliable.
_UNSAFE_FILE_SYSTEMS = {
    "tmpfs": "it is in memory: its data is lost when the machine stops",
    "ramfs": "it is in memory: its data is lost when the machine stops",
    "nfs": "locks and flushes over a network are not reliable",
    "nfs4": "locks and flushes over a network are not reliable",
    "cifs": "locks and flushes over a network are not reliable",
}
_UNITS = ((1 << 40, "TiB"), (GIB, "GiB"), (MIB, "MiB"))


def check_disk(data_directory: str) -> list[Finding]:
    place = os.path.abspath(data_directory)
    while not os.path.exists(place):
        place = os.path.dirname(place)
    made_later = "" if os.path.exists(data_directory) else f", not there yet; looked at {place}"
    if not os.path.isdir(place):
        advice = "name a directory with --data"
        return [Finding("data directory", Status.BAD, f"{data_directory}: {place} is a file", advice)]
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        advice = "run as a user who may, or change its owner"
        return [Finding("data directory", Status.BAD, f"{data_directory}: no permission for {place}", advice)]
    directory = Finding("data directory", Status.GOOD, os.path.abspath(data_directory) + made_later)
    return [directory, _check_free_space(place), _check_file_system(place), _check_flush(place)]


def _check_free_space(place: str) -> Finding:
    free_bytes, total_bytes = SystemFiles().free_bytes(place)
    found = f"{_size(free_bytes)} free of {_size(total_bytes)}"
    if free_bytes < FREE_BYTES_MIN:
        return Finding(
            "disk space", Status.WARNING, found, "free some, or lower retention.ms or retention.bytes of topics"
        )
    return Finding("disk space", Status.GOOD, found)


def _size(count: int) -> str:
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"


def _check_file_system(place: str) -> Finding:
    kind = _file_system(place)
    if kind in _UNSAFE_FILE_SYSTEMS:
        return Finding("file system", Status.WARNING, kind, f"{_UNSAFE_FILE_SYSTEMS[kind]}; use a local disk")
    return Finding("file system", Status.GOOD, kind)


def _file_system(place: str) -> str:
    """Return the file system type of the longest mount point above the path, or a text that it is unknown."""
    try:
        with open("/proc/mounts", encoding="utf-8") as file:
            mounts = [line.split()[1:3] for line in file]
    except OSError:
        return "unknown to this system's tools"
    prefix = os.path.realpath(place) + "/"
    above = [(len(point), kind) for point, kind in mounts if prefix.startswith(point.rstrip("/") + "/")]
    return max(above)[1] if above else "unknown"


def _check_flush(place: str) -> Finding:
    descriptor, path = tempfile.mkstemp(prefix=PROBE_PREFIX, dir=place)
    file = SystemFile(path, descriptor)
    try:
        times_ms = []
        for number in range(PROBE_FLUSHES):
            file.write(number * PROBE_BYTES, [bytes(PROBE_BYTES)])
            begun = time.perf_counter()
            file.sync()
            times_ms.append((time.perf_counter() - begun) * 1000)
    except OSError as error:
        return Finding("flush", Status.BAD, f"{error.strerror} in {place}", "free disk space, or use another disk")
    finally:
        file.close()
        os.unlink(path)
    median_ms = statistics.median(times_ms)
    found = f"{median_ms:.2f} ms, the slowest of {PROBE_FLUSHES} {max(times_ms):.2f} ms"
    if median_ms > FLUSH_SLOW_MS:
        advice = "every acks=all produce waits for one: use a faster disk, or see docs/configuration.md, flush.messages"
        return Finding("flush", Status.WARNING, found, advice)
    return Finding("flush", Status.GOOD, found)
