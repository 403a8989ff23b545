"""What the log says of shards that must be replayed: one line per cause, however many shards it hits and however often.

A broker without a lease, or a log with too few replicas, fails all shards of a coordinator, and each again after every
replay. A cause is reported when it appears, and again only once it was over or `REPEAT_S` have passed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

# A cause that lasts is reported again after this.
REPEAT_S = 600.0


class ReplayReports:
    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._causes: dict[str, str] = {}  # of each shard that failed and has appended nothing since
        self._reported_s: dict[str, float] = {}  # when, by cause

    def failed(self, shard: str, cause: str) -> None:
        """Report the cause, unless it was reported not long ago."""
        self._causes[shard] = cause
        now_s = self._monotonic()
        if now_s - self._reported_s.get(cause, -REPEAT_S) < REPEAT_S:
            return
        self._reported_s[cause] = now_s
        logger.error(
            "%s must be replayed from its log: %s. Other shards with this cause are not reported for %.0f minutes",
            shard,
            cause,
            REPEAT_S / 60,
        )

    def appended(self, shard: str) -> None:
        """Note that a shard's log takes records again. The cause is over once that holds for all shards that it hit."""
        cause = self._causes.pop(shard, None) if self._causes else None
        if cause is not None and cause not in self._causes.values():
            self._reported_s.pop(cause, None)
            logger.warning("%s and all others that had to be replayed take records again: it was %s", shard, cause)

    def closed(self, shard: str) -> None:
        """Note that a shard is served here no more."""
        self._causes.pop(shard, None)
