"""Where a broker is killed: after so many acknowledgements, or inside the N-th call of a system call, traced.

A traced kill (strace) falls between the call's entry and its effect, so each N is an exact point of the broker's own
order of writes.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from typing import NamedTuple

HAS_TRACER = shutil.which("strace") is not None
# Writing to logs; making them durable; checkpoints, epochs and segments' names; undoing and cutting.
SYSTEM_CALLS_UNDER_LOAD = ("pwritev2", "fdatasync", "fsync", "rename", "openat", "ftruncate")
CALLS_MAX = {"pwritev2": 200, "fdatasync": 60, "fsync": 12, "rename": 12, "openat": 600, "ftruncate": 12}
# What recovery does to the disk, from its first such call on.
SYSTEM_CALLS_OF_RECOVERY = ("fdatasync", "fsync", "rename", "ftruncate", "unlink", "pwritev2")
RECOVERY_CALLS_MAX = 8
ACKNOWLEDGED_MAX = 1500


class CrashPoint(NamedTuple):
    kind: str  # "kill", "pause and kill", "call", "recovery"
    acknowledged: int  # records acknowledged before the kill, where no call decides
    tracer: Sequence[str] = ()


def inject(system_call: str, what: str) -> list[str]:
    """strace, stopping the program only at that call."""
    return [
        *("strace", "-f", "--seccomp-bpf", "-qqq", "-o", "/dev/null"),
        *("-e", f"trace={system_call}", "-e", f"inject={system_call}:{what}"),
    ]


def choose(chance: random.Random) -> CrashPoint:
    acknowledged = chance.randint(1, ACKNOWLEDGED_MAX)
    kinds = ["kill", "pause and kill"] + (["call", "call", "recovery", "recovery"] if HAS_TRACER else [])
    kind = chance.choice(kinds)
    if kind == "call":
        call = chance.choice(SYSTEM_CALLS_UNDER_LOAD)
        return CrashPoint(kind, acknowledged, inject(call, f"signal=KILL:when={chance.randint(1, CALLS_MAX[call])}"))
    if kind == "recovery":
        call = chance.choice(SYSTEM_CALLS_OF_RECOVERY)
        return CrashPoint(kind, 0, inject(call, f"signal=KILL:when={chance.randint(1, RECOVERY_CALLS_MAX)}"))
    return CrashPoint(kind, acknowledged)
