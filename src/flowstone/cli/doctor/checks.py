"""The checks of `flowstone doctor` on this machine: Python, packages, the native kernel, limits, the clock.

Each check returns one Finding and changes nothing. A warning means less speed or convenience; bad means that a broker
will not run, or not safely.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import shlex
import sys
import time
from enum import StrEnum
from importlib import metadata
from typing import NamedTuple

from flowstone import __version__

OPEN_FILES_MIN = 4096  # enough for a thousand partitions and as many connections
TESTED_PYTHON_MAX = (3, 13)
PACKAGES = ("confluent-kafka", "cramjam", "fastcrc", "lz4", "rich", "typer", "uvloop", "zstandard")
# adjtimex(2): the call fills a struct timex, smaller than this, and gives this state while nothing sets the clock.
_TIMEX_BYTES = 512
_TIME_ERROR = 5


class Status(StrEnum):
    GOOD = "good"
    WARNING = "warning"
    BAD = "bad"


class Finding(NamedTuple):
    name: str
    status: Status
    finding: str
    advice: str = ""


def check_python() -> Finding:
    found = (
        f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {os.uname().release}"
    )
    if sys.version_info[:2] > TESTED_PYTHON_MAX:
        newest = ".".join(map(str, TESTED_PYTHON_MAX))
        return Finding("python", Status.WARNING, found, f"newer than what Flowstone is tested with, {newest}")
    return Finding("python", Status.GOOD, found)


def check_versions() -> Finding:
    import confluent_kafka

    versions = {name: _version(name) for name in PACKAGES}
    versions["librdkafka"] = confluent_kafka.libversion()[0]
    found = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    return Finding("versions", Status.GOOD, f"flowstone {__version__}, {found}")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def check_kernel() -> Finding:
    from flowstone import kernel
    from flowstone.kernel import build

    if kernel.KERNEL == "native":
        stale = not build.is_current()
        advice = "built from other sources: run `python -m flowstone.kernel.build`" if stale else ""
        return Finding("kernel", Status.WARNING if stale else Status.GOOD, "native", advice)
    return Finding(
        "kernel",
        Status.WARNING,
        f"the Python twin, which is slower: {_why_not_native()}",
        "see the compiler below, then run `python -m flowstone.kernel.build`",
    )


def _why_not_native() -> str:
    try:
        from flowstone.kernel import native  # noqa: F401
    except ImportError as error:
        return str(error)
    return "the library was built after this process started"


def check_compiler() -> Finding:
    """Check for a C compiler, which matters only if the kernel is not built."""
    from flowstone import kernel
    from flowstone.kernel import build

    found = build.compilers()
    if found:
        return Finding("compiler", Status.GOOD, shlex.join(found[0]))
    needed = kernel.KERNEL != "native"
    return Finding(
        "compiler",
        Status.WARNING if needed else Status.GOOD,
        "none",
        "install gcc or clang, or run `pip install ziglang`" if needed else "",
    )


def check_event_loop() -> Finding:
    version = _version("uvloop")
    if version:
        return Finding("event loop", Status.GOOD, f"uvloop {version}")
    return Finding(
        "event loop", Status.WARNING, "asyncio's own, which is slower", "run `pip install uvloop` if it has a wheel"
    )


def check_open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{_limit(soft)} now, which a broker raises to {_limit(hard)}"
    if hard != resource.RLIM_INFINITY and hard < OPEN_FILES_MIN:
        return Finding(
            "open files", Status.WARNING, found, f"raise the hard limit to {OPEN_FILES_MIN}: see `ulimit -Hn`"
        )
    return Finding("open files", Status.GOOD, found)


def _limit(limit: int) -> str:
    return "no limit" if limit == resource.RLIM_INFINITY else str(limit)


def check_clock() -> Finding:
    """Check the clock, which sets timestamps of records without one and controls retention."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    if sys.platform == "linux" and ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)) == _TIME_ERROR:
        advice = "nothing synchronises it: run an NTP client such as chrony, unless the host does"
        return Finding("clock", Status.WARNING, f"{now}, not synchronised", advice)
    return Finding("clock", Status.GOOD, now)
