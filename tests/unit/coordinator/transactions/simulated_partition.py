"""What the simulation needs of a partition: who writes in which transaction, and what a marker makes of that.

A leader's rules about markers are part of the protocol: V2 demands a higher epoch than the producer's, or the same one
if no transaction is open, which is the marker that comes twice. An older coordinator is refused.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from flowstone.coordinator.transactions.messages import V2, SendMarkers

Tag = tuple[str, int]
"""A transaction as its producer knows it: the producer's name and a number."""


@dataclass
class Writer:
    epoch: int = -1
    coordinator_epoch: int = -1
    open: list[Tag] = field(default_factory=list)


class SimulatedPartition:
    def __init__(self) -> None:
        self.writers: dict[int, Writer] = defaultdict(Writer)
        self.outcomes: dict[Tag, set[bool]] = defaultdict(set)

    def write(self, producer_id: int, epoch: int, tag: Tag) -> bool:
        """Return whether the write of this transaction is taken."""
        writer = self.writers[producer_id]
        if epoch < writer.epoch:
            return False
        assert not writer.open or writer.epoch == epoch, f"T1: {tag} writes into an open transaction, {writer.open[0]}"
        writer.epoch = epoch
        writer.open.append(tag)
        return True

    def mark(self, task: SendMarkers) -> bool:
        """Return whether the marker is taken."""
        writer = self.writers[task.producer_id]
        if task.coordinator_epoch < writer.coordinator_epoch or task.producer_epoch < writer.epoch:
            return False
        if task.transaction_version >= V2 and task.producer_epoch == writer.epoch and writer.open:
            return False
        for tag in writer.open:
            self.outcomes[tag].add(task.is_commit)
        self.writers[task.producer_id] = Writer(task.producer_epoch, task.coordinator_epoch)
        return True
