"""Log lines about failed logins, and what comes before them: one per address and minute, and how many more there were.

Anyone who reaches a listener can cause such failures in any number. The log must not fill the disk with them.
"""

from __future__ import annotations

import logging
from functools import partial

from flowstone.ports.clock import Clock

logger = logging.getLogger(__name__)

PERIOD_S = 60.0
# Addresses whose failures are counted, each kind of failure apart; those of all others together count as one.
COUNTED_MAX = 1_000
KIND_CHARACTERS_MAX = 100
OTHERS = "other addresses"


class FailedLogins:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Failures of an address and kind since their last line, until the period is over.
        self._more: dict[tuple[str, str], int] = {}

    def note(self, peer: str, kind: str, level: int, message: str, *args: object) -> None:
        """Log a failure of a client, or count it if one of its address and kind was logged less than a minute ago."""
        key = peer.rpartition(":")[0], kind[:KIND_CHARACTERS_MAX]
        if key not in self._more and len(self._more) >= COUNTED_MAX:
            key = OTHERS, "logins and handshakes"
        if key in self._more:
            self._more[key] += 1
            return
        self._more[key] = 0
        logger.log(level, message, *args)
        self._clock.call_later(PERIOD_S, partial(self._period_over, key, level))

    def _period_over(self, key: tuple[str, str], level: int) -> None:
        more, (host, kind) = self._more.pop(key), key
        if more:
            logger.log(level, "%d more %s from %s failed within %d s", more, kind, host, PERIOD_S)
