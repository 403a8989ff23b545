"""Expired timers of a consumer group: sessions, and the time in which partitions must be given up."""

from __future__ import annotations

from collections.abc import Collection

from flowstone.coordinator.groups.consumer.group import ConsumerGroup
from flowstone.coordinator.groups.consumer.removal import overdue, remove_members
from flowstone.coordinator.groups.state import Turn
from flowstone.coordinator.groups.timers import Timer


def expire(turn: Turn, group: ConsumerGroup, due: Collection[Timer]) -> None:
    """Remove the members whose timers are due, all at once."""
    members, reason = overdue(group, due)
    if members:
        remove_members(turn, group, members, reason)
