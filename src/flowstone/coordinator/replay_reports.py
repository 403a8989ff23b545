"""Log messages about shards that must be replayed: one line per cause, however many shards it affects.

A broker without a lease, or a log with too few replicas, fails all shards of a coordinator, and each again after every
replay. A cause is reported when it appears, and again only after it was over or `REPEAT_S` have passed.
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
        self._causes: dict[str, str] = {}  # by shard, for shards that failed and have not appended since
        self._reported_s: dict[str, float] = {}  # the time of the last report, by cause

    def failed(self, shard: str, cause: str) -> None:
        """Report the cause of a shard's failure, unless it was reported recently."""
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
        """Record that a shard appended again; the cause is over once all shards that it affected have."""
        cause = self._causes.pop(shard, None) if self._causes else None
        if cause is not None and cause not in self._causes.values():
            self._reported_s.pop(cause, None)
            logger.warning(
                "%s and all other shards that had to be replayed append records again; the cause was: %s", shard, cause
            )

    def closed(self, shard: str) -> None:
        """Record that this broker no longer serves a shard."""
        self._causes.pop(shard, None)
