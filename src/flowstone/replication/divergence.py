"""Where a follower's log and its leader's part ways, by leader epochs (KIP-101, 279, 320). Pure.

A follower says with each fetch which epoch its last record has. The leader compares: where its own log of that epoch
ended earlier, or has no such epoch, it answers with the largest epoch that it has and that is not above, and with its
end. The follower drops what lies beyond, and asks again, until the answer is records. High watermarks play no part in
it (R5): a follower's may be older than what its leader has committed.
"""

from __future__ import annotations

from flowstone.log.partition.leader_epochs import LeaderEpochs
from flowstone.replication.state import NO_LEADER_EPOCH, DivergingEpoch


def find_divergence(
    epochs: LeaderEpochs, log_end_offset: int, fetch_offset: int, last_fetched_epoch: int
) -> DivergingEpoch | None:
    """For the leader: where the follower has more than the leader, or other records; None if it has a prefix."""
    if last_fetched_epoch == NO_LEADER_EPOCH:
        return None
    if last_fetched_epoch > epochs.latest:
        # Epochs leave a trace only with their first record: the leader has none of this one, nor of a later one.
        epoch = epochs.latest if len(epochs) else last_fetched_epoch
        end_offset = log_end_offset
    else:
        epoch, end_offset = epochs.end_offset_for(last_fetched_epoch, log_end_offset)
    if epoch < last_fetched_epoch or end_offset < fetch_offset:
        return DivergingEpoch(epoch, end_offset)
    return None


def truncation_offset(epochs: LeaderEpochs, log_end_offset: int, diverging: DivergingEpoch) -> int:
    """For the follower: from where on its log must go. Where it does not know the leader's epoch, it goes to the end
    of the one before; the next fetch tells whether that is enough."""
    epoch, end_offset = epochs.end_offset_for(diverging.epoch, log_end_offset)
    if epoch == NO_LEADER_EPOCH:
        return min(diverging.end_offset, log_end_offset)
    if epoch != diverging.epoch:
        return min(end_offset, log_end_offset)
    return min(end_offset, diverging.end_offset, log_end_offset)
