"""Finds where a follower's log and its leader's diverge, by leader epochs (KIP-101, 279, 320). Pure.

A follower says with each fetch which epoch its last record has. The leader compares: if its own log ended that epoch
earlier, or has no such epoch, it answers with its largest epoch that is not above, and with that epoch's end offset.
The follower drops what lies beyond and fetches again, until the answer is records. High watermarks are not used (R5): a
follower's may be older than what its leader has committed.
"""

from __future__ import annotations

from flowstone.log.partition.leader_epochs import LeaderEpochs
from flowstone.replication.state import NO_LEADER_EPOCH, DivergingEpoch


def find_divergence(
    epochs: LeaderEpochs, log_end_offset: int, fetch_offset: int, last_fetched_epoch: int
) -> DivergingEpoch | None:
    """Return the point where the follower's log differs from the leader's or exceeds it; None if it is a prefix."""
    if last_fetched_epoch == NO_LEADER_EPOCH:
        return None
    if last_fetched_epoch > epochs.latest:
        # An epoch leaves a trace only with its first record: the leader has none of this epoch, nor of a later one.
        epoch = epochs.latest if len(epochs) else last_fetched_epoch
        end_offset = log_end_offset
    else:
        epoch, end_offset = epochs.end_offset_for(last_fetched_epoch, log_end_offset)
    if epoch < last_fetched_epoch or end_offset < fetch_offset:
        return DivergingEpoch(epoch, end_offset)
    return None


def truncation_offset(epochs: LeaderEpochs, log_end_offset: int, diverging: DivergingEpoch) -> int:
    """Return the offset from which the follower must cut its log.

    If the follower does not know the leader's epoch, that is the end of the epoch before; the next fetch tells whether
    it has cut enough.
    """
    epoch, end_offset = epochs.end_offset_for(diverging.epoch, log_end_offset)
    if epoch == NO_LEADER_EPOCH:
        return min(diverging.end_offset, log_end_offset)
    if epoch != diverging.epoch:
        return min(end_offset, log_end_offset)
    return min(end_offset, diverging.end_offset, log_end_offset)
