"""One step of a member towards its target: pure arithmetic over partitions.

A member first gives up what is not in its target, and keeps its epoch until it has confirmed that. Then it enters the
epoch of the assignment, and gets each partition of its target once no other member holds it. So a partition has one
owner in each epoch, and what a member keeps is never interrupted.

    STABLE ──loses partitions──► UNREVOKED ──confirmed──► UNRELEASED ──all released by others──► STABLE
       └──loses none, misses some──────────────────────────────▲

A partition that goes back to the target while the member gives it up is given up all the same: the member has been told
so already. It gets the partition again after it has confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from flowstone.coordinator.groups.consumer_records import MemberState, Partition


class Position(NamedTuple):
    """A member's epoch, its partitions with the epochs of their assignment, and the partitions that it must give up."""

    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: Mapping[Partition, int]
    revoking: Mapping[Partition, int]


def reconcile(
    position: Position,
    target: frozenset[Partition],
    assignment_epoch: int,
    owned: frozenset[Partition] | None,
    is_free: Callable[[Partition], bool],
) -> Position:
    """Return the member's next position.

    `target` are the partitions that it shall have, without those that it does not subscribe to. `owned` are those that
    it says it has; None if it says nothing. `is_free` returns whether no other member holds a partition.
    """
    kept = {partition: epoch for partition, epoch in position.assigned.items() if partition in target}
    revoking = dict(position.revoking)
    if len(kept) < len(position.assigned):
        revoking |= {partition: epoch for partition, epoch in position.assigned.items() if partition not in kept}
    if revoking and (owned is None or not owned.isdisjoint(revoking)):
        return Position(position.epoch, position.previous_epoch, MemberState.UNREVOKED, kept, revoking)
    missing = [partition for partition in target if partition not in kept]
    added = {partition: assignment_epoch for partition in missing if is_free(partition)}
    state = MemberState.STABLE if len(added) == len(missing) else MemberState.UNRELEASED
    previous_epoch = position.previous_epoch if position.epoch == assignment_epoch else position.epoch
    return Position(assignment_epoch, previous_epoch, state, kept | added, {})
