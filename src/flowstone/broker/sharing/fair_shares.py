"""Fair division of a share partition between members: how many records each may get at once.

A member gets its share of the window, so that a slow one does not hold what others could handle meanwhile. A member
that acknowledges quickly gets what it handles in a quarter of a second, if that is more: usually whole batches. A new
member is expected to be as fast as the others are. Pure.
"""

from __future__ import annotations

AHEAD_S = 0.25
# The window is divided among so many members at least: others may join, and must not wait for those that came first.
MEMBERS_EXPECTED = 32
# How much the newest delivery counts in a member's speed.
NEWEST_WEIGHT = 0.5
# Shorter times are not measured exactly.
ELAPSED_S_MIN = 0.0005


class FairShares:
    def __init__(self) -> None:
        # By member: since when it has had records, and how many of them it has acknowledged since.
        self._begun: dict[str, tuple[float, int]] = {}
        self._speeds: dict[str, float] = {}  # records per second
        self._typical = 0.0  # of all members

    def delivered(self, member: str, now_s: float) -> None:
        """Record that a member has been given records."""
        if member not in self._begun:
            self._begun[member] = now_s, 0

    def acknowledged(self, member: str, count: int, has_more: bool, now_s: float) -> None:
        """Record that a member has acknowledged records; `has_more` says whether it still holds others."""
        begun = self._begun.get(member)
        if begun is None:
            return
        begun_s, before = begun
        elapsed_s = now_s - begun_s
        if has_more and elapsed_s < AHEAD_S:
            self._begun[member] = begun_s, before + count
            return
        if has_more:  # some members always hold records, for example one that is stuck
            self._begun[member] = now_s, 0
        else:
            del self._begun[member]
        speed = (before + count) / max(elapsed_s, ELAPSED_S_MIN)
        known = self._speeds.get(member)
        self._speeds[member] = speed if known is None else known + NEWEST_WEIGHT * (speed - known)
        self._typical += NEWEST_WEIGHT * (speed - self._typical)

    def forget(self, member: str) -> None:
        """Remove a member that has left."""
        self._begun.pop(member, None)
        self._speeds.pop(member, None)

    def limit(self, member: str, member_count: int, window_max: int, max_records: int) -> int | None:
        """Return how many records the member may get; None if it may have whole batches."""
        if member_count < 2:
            return None
        ahead = self._speeds.get(member, self._typical) * AHEAD_S
        if ahead >= max_records:
            return None
        return max(window_max // (2 * max(member_count, MEMBERS_EXPECTED)), int(ahead), 1)
