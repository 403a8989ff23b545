"""Limits the rate at which a broker replicates to followers, or as a follower, that are not in sync yet."""

from __future__ import annotations

import math


class Throttle:
    """Tells when more bytes may be fetched at a given rate; unused capacity is not saved for later."""

    def __init__(self, bytes_per_s: int) -> None:
        self.bytes_per_s = bytes_per_s
        self.free_at_s = -math.inf

    def spend(self, size_bytes: int, now_s: float) -> None:
        """Record that this many bytes were moved now."""
        self.free_at_s = max(self.free_at_s, now_s) + size_bytes / max(self.bytes_per_s, 1)
