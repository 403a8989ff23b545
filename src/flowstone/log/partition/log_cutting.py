"""Cuts off the end of a log, or all of it, in one iteration of the event loop, with the state derived from the records.

What is left was prepared before (`truncation_plan`); the caller (`truncator`) knows when it is safe to begin.
"""

from __future__ import annotations

from flowstone.log.partition.leader_epochs import LeaderEpochs
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.partition.truncation_plan import Cut


def cut_log(log: PartitionLog, cut: Cut) -> None:
    """Drop the log's end, or all of it. If OSError is raised the log is partly cut, and only a restart can use it
    again.

    The recovery point must have been lowered, and checkpointed, or the next start takes this for damage; and
    `names_lock` must be held, or a compacted segment may bring back what was dropped: see `truncator`.
    """
    assert cut.log_end == log.end
    assert log.flushed_end.offset <= cut.untouched_end.offset
    if cut.shortened is not None:
        log.store.shorten(*cut.shortened)
    else:
        log.store.restart_at(cut.end.offset, log.topic_id)
        log.log_start_offset = cut.end.offset
        log.epochs = LeaderEpochs()
        log.directory.store_epochs(log.epochs.encode())
    log.end, log.producers = cut.end, cut.producers
    log.durability.void_tasks()
    log.directory.note_names_changed()
    _forget_after(log, cut.end.offset)


def _forget_after(log: PartitionLog, end_offset: int) -> None:
    """Remove from the derived state everything at or after the log's new end."""
    log.first_dirty_offset = min(log.first_dirty_offset, end_offset)
    log.directory.remove_snapshots_after(end_offset)
    if log.branch_point is not None and end_offset < log.branch_point.offset:
        # Records from here on are no longer the source's.
        log.branch_point = log.branch_point._replace(offset=end_offset)
        log.directory.store_branch_point(log.branch_point)
    if log.epochs.truncate_end(end_offset):
        log.directory.store_epochs(log.epochs.encode())
