"""`flowstone up` with something wrong in its coordinator, beside what `sabotaged_up` offers; several things at once.

python sabotaged_groups.py SABOTAGE[:ARGUMENT…][,SABOTAGE…] <arguments of flowstone up>
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import sabotaged_up  # beside this program

from flowstone.broker.coordinators.internal_logs import PartitionInternalLog
from flowstone.cli.up.command import run_up
from flowstone.config import BROKER_SETTINGS, TOPIC_SETTINGS
from flowstone.coordinator.groups import commits
from flowstone.coordinator.groups.classic import membership, rebalancing
from flowstone.coordinator.groups.messages import CommittedOffset
from flowstone.errors import ErrorCode

OFTEN_BYTES, OFTEN_MS = 8 * 1024, 20
LATE_APPEND_S = 0.3


def compact_often() -> None:
    """No bug: segments of groups are of some kilobytes and compacted at once, so that kills fall into that as well."""
    object.__setattr__(TOPIC_SETTINGS["segment.bytes"], "low", OFTEN_BYTES)
    object.__setattr__(BROKER_SETTINGS["offsets.topic.segment.bytes"], "low", OFTEN_BYTES)
    sys.argv += ["--set", f"offsets.topic.segment.bytes={OFTEN_BYTES}", "--set", "min.cleanable.dirty.ratio=0"]
    sys.argv += ["--set", f"log.cleaner.backoff.ms={OFTEN_MS}", "--set", "log.segment.delete.delay.ms=0"]


def answer_before_the_log_has_it() -> None:
    """Commits and assignments are answered from memory and reach the log a moment later."""
    append = PartitionInternalLog.append

    def later(self: PartitionInternalLog, batch: bytes) -> int:
        asyncio.get_running_loop().call_later(LATE_APPEND_S, append, self, batch)
        return self.log_end_offset

    _replace(PartitionInternalLog, "append", later)
    _replace(PartitionInternalLog, "when_committed", lambda self, callback: callback(ErrorCode.NONE))


def let_fenced_members_commit() -> None:
    _replace(commits, "_check_commit", lambda group, request: ErrorCode.NONE)


def give_everything_to_everybody() -> None:
    assign = membership._assign

    def generous(turn: Any, group: Any, assignments: dict[str, bytes]) -> None:
        everything = b"".join(assignments.values())
        assign(turn, group, dict.fromkeys(assignments, everything))

    _replace(membership, "_assign", generous)


def never_end_a_join() -> None:
    _replace(rebalancing, "complete_join", lambda turn, group: None)


def begin_after_the_next_record() -> None:
    """A new owner is told to begin one record too far on."""
    _replace(
        commits,
        "CommittedOffset",
        lambda offset, *more: CommittedOffset(offset + 1, *more),
    )


def _replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
    assert hasattr(owner, name)
    setattr(owner, name, function)


PLANTED_BUGS = (
    answer_before_the_log_has_it,
    let_fenced_members_commit,
    give_everything_to_everybody,
    never_end_a_join,
    begin_after_the_next_record,
)
SABOTAGES: dict[str, Callable[..., None]] = {each.__name__: each for each in (compact_often, *PLANTED_BUGS)}


if __name__ == "__main__":
    for sabotage in sys.argv[1].split(","):
        name, *arguments = sabotage.split(":")
        (SABOTAGES.get(name) or sabotaged_up.SABOTAGES[name])(*arguments)
    sys.exit(run_up(sys.argv[2:]))
