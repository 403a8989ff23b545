"""Warnings about requests that a coordinator refuses for lack of memory, at most one a minute."""

from __future__ import annotations

import logging
from collections.abc import Callable

from flowstone.config import MIB
from flowstone.memory_budget import MemoryBudget

# Refused requests may come again and again; the log tells of them this often.
REFUSAL_LOG_INTERVAL_S = 60.0

logger = logging.getLogger(__name__)


class RefusalLog:
    def __init__(self, what: str, setting: str, remedy: str, monotonic: Callable[[], float]) -> None:
        """Create a log of refusals. `what` was refused because of `setting`; `remedy` is what an operator can do."""
        self._message = f"{what} take %d MiB of memory and {setting} is %d MiB; raise it, or {remedy}"
        self._monotonic = monotonic
        self._logged_s = -REFUSAL_LOG_INTERVAL_S

    def refused(self, memory: MemoryBudget) -> None:
        """Warn of a refusal, unless a warning was logged less than a minute ago."""
        now_s = self._monotonic()
        if now_s - self._logged_s >= REFUSAL_LOG_INTERVAL_S:
            self._logged_s = now_s
            logger.warning(self._message, memory.used_bytes // MIB, memory.limit_bytes // MIB)
