"""Log messages about headroom: one when a group's headroom becomes low, and one when it is sufficient again."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable

from flowstone.broker.lag.group_status import GroupStatus

logger = logging.getLogger(__name__)

GROUPS_PER_STEP = 500


class HeadroomAlarm:
    def __init__(self) -> None:
        self._low: set[str] = set()

    def look(self, groups: Iterable[GroupStatus]) -> Generator[None, None, None]:
        """Log what has changed since the last call, in steps for `time_slices.run_in_slices`."""
        low_before, self._low = self._low, set()
        for count, group in enumerate(groups):
            if count % GROUPS_PER_STEP == 0:
                yield
            low = [each for each in group.partitions if each.is_headroom_low]
            if not low:
                continue
            self._low.add(group.group_id)
            if group.group_id in low_before:
                continue
            worst = min(low, key=lambda each: each.headroom_seconds or 0)
            if worst.lost:
                told = f"retention has deleted {worst.lost} records of it that the group had not read"
            else:
                told = f"retention deletes its next unread record in {worst.headroom_seconds:.0f} s"
            others = f", and {len(low) - 1} more partitions have low headroom" if len(low) > 1 else ""
            where = f"{worst.topic}-{worst.partition}"
            logger.warning("group %s is too far behind in %s: %s%s", group.group_id, where, told, others)
        for group_id in low_before - self._low:
            logger.info("group %s is no longer too far behind", group_id)
