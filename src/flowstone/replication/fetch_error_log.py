"""Logs which partitions a leader refuses to a follower: one line per error and change of leaders.

When leaders move, a follower knows some decisions before its leader does, some after it: hundreds of partitions are
refused for a moment, each of them several times.
"""

from __future__ import annotations

import logging
import math

from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition

logger = logging.getLogger(__name__)

# The same error is logged once, until the leader has not answered it for this long.
REFUSALS_QUIET_S = 10.0
# The most partitions named in such a line.
REFUSED_NAMED_MAX = 3


class FetchErrorLog:
    """The errors that one leader answers for partitions, and when each kind was last logged."""

    def __init__(self) -> None:
        # By error: when it was last answered; and the partitions for which the present response has it.
        self._last_s: dict[int, float] = {}
        self._present: dict[int, list[TopicPartition]] = {}

    def add(self, code: int, partition: TopicPartition) -> None:
        self._present.setdefault(code, []).append(partition)

    def report(self, now_s: float) -> None:
        """Log the errors since the last call, unless the same error was logged recently."""
        if not self._present:
            return
        for code, refused in self._present.items():
            if now_s - self._last_s.get(code, -math.inf) >= REFUSALS_QUIET_S:
                named = ", ".join(map(str, refused[:REFUSED_NAMED_MAX]))
                more = f" and {len(refused) - REFUSED_NAMED_MAX} more" if len(refused) > REFUSED_NAMED_MAX else ""
                told = "cannot be fetched from the leader for now: %s%s: %s. What it refuses next is not reported"
                logger.info(told, named, more, _name(code))
            self._last_s[code] = now_s
        self._present = {}


def _name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"
