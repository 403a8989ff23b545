"""Where a broker is killed: after so many acknowledgements, or at an exact call of its file port or of the kernel.

Three ways to reach a moment: the test kills the process once clients have heard so much; the process kills itself at
the N-th call of one file operation (before it, after it, or with half a write done); strace kills it inside the N-th
call of one system call. The last two count from the process's start, so that small numbers fall into recovery.
"""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

HAS_TRACER = shutil.which("strace") is not None
SABOTAGED_UP = Path(__file__).with_name("sabotaged_up.py")
# Each with about how often it is called in a second of load.
FILE_OPERATIONS = {
    "write": 400,
    "sync": 300,
    "truncate": 30,
    "open": 40,
    "replace": 12,
    "sync_directory": 24,
    "names": 12,
    "remove": 4,
}
SYSTEM_CALLS = {"pwritev2": 150, "fdatasync": 50, "fsync": 12, "rename": 12, "ftruncate": 12, "unlink": 3}
# A broker that never comes to the call it should die in is killed after so many acknowledgements.
ACKNOWLEDGED_MAX = 700


class CrashPoint(NamedTuple):
    name: str
    acknowledged: int = ACKNOWLEDGED_MAX
    pauses: bool = False
    program: Sequence[str] | None = None
    tracer: Sequence[str] = ()


def sabotaged(*sabotage: object) -> list[str]:
    """The program that is `flowstone up` with something wrong: see there."""
    return [sys.executable, str(SABOTAGED_UP), ":".join(map(str, sabotage))]


def inject(system_call: str, what: str) -> list[str]:
    """strace, doing `what` to the system call. (Its --seccomp-bpf would be faster, but then signals are not sent.)"""
    return [
        *("strace", "-f", "-qqq", "-o", "/dev/null"),
        *("-e", f"trace={system_call}", "-e", f"inject={system_call}:{what}"),
    ]


def choose(chance: random.Random) -> CrashPoint:
    ways = ["acknowledged", "pause", *["operation"] * 6, *(["system call"] if HAS_TRACER else [])]
    way = chance.choice(ways)
    if way == "operation":
        operation = chance.choice(list(FILE_OPERATIONS))
        number = _call_number(chance, FILE_OPERATIONS[operation])
        moment = chance.choice(["before", "after"] + (["half"] * 2 if operation == "write" else []))
        sabotage = ("die_at", operation, number, moment)
        return CrashPoint(" ".join(map(str, sabotage)), program=sabotaged(*sabotage))
    if way == "system call":
        call = chance.choice(list(SYSTEM_CALLS))
        number = _call_number(chance, SYSTEM_CALLS[call])
        return CrashPoint(f"{call} {number}", tracer=inject(call, f"signal=KILL:when={number}"))
    acknowledged = chance.randint(1, ACKNOWLEDGED_MAX)
    return CrashPoint(f"{way} {acknowledged}", acknowledged, pauses=way == "pause")


def _call_number(chance: random.Random, often: int) -> int:
    """Every other one is among the first calls: they are recovery's."""
    return chance.randint(1, min(often, 10) if chance.random() < 0.5 else often)
