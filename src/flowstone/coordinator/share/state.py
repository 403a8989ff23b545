"""The state of one share partition in the share coordinator: its last snapshot with the updates since."""

from __future__ import annotations

from copy import copy

from flowstone.coordinator.share.records import (
    UNCHANGED_START_OFFSET,
    UNKNOWN_COUNT,
    Delay,
    DeliveryState,
    LetterRange,
    ShareKey,
    ShareSnapshot,
    ShareUpdate,
    StateBatch,
)
from flowstone.coordinator.share.state_batches import cut_before, overlay, remove


class PartitionState:
    __slots__ = (
        "batches",
        "create_ms",
        "delays",
        "delivery_complete_count",
        "generation",
        "given_up",
        "key",
        "leader_epoch",
        "letters",
        "snapshot_epoch",
        "start_offset",
        "state_epoch",
        "update_count",
        "write_ms",
    )

    def __init__(self, snapshot: ShareSnapshot, generation: int) -> None:
        """Create the state of a snapshot, which was written in a generation of the shard."""
        self.key: ShareKey = snapshot.key
        self.generation = generation
        self.snapshot_epoch, self.state_epoch = snapshot.snapshot_epoch, snapshot.state_epoch
        self.leader_epoch, self.start_offset = snapshot.leader_epoch, snapshot.start_offset
        self.create_ms, self.write_ms = snapshot.create_ms, snapshot.write_ms
        self.delivery_complete_count = snapshot.delivery_complete_count
        self.batches: list[StateBatch] = list(snapshot.batches)
        # By offset; a record that is completed has none.
        self.delays: dict[int, Delay] = {delay.offset: delay for delay in snapshot.delays}
        self.letters = snapshot.letters
        self.given_up: list[LetterRange] = list(snapshot.given_up)
        self.update_count = 0

    def update(self, update: ShareUpdate) -> None:
        """Apply a change."""
        self.update_count += 1
        self.leader_epoch = update.leader_epoch
        if update.delivery_complete_count != UNKNOWN_COUNT:
            self.delivery_complete_count = update.delivery_complete_count
        if update.letters is not None:
            self.letters = update.letters
        overlay(self.batches, update.batches)
        if self.delays:
            self._drop_delays(update.batches)
        self.delays.update((delay.offset, delay) for delay in update.delays)
        if self.given_up:
            for first, last, state, _ in update.batches:
                if state != DeliveryState.AVAILABLE:
                    remove(self.given_up, first, last)
        overlay(self.given_up, update.given_up)
        if update.start_offset != UNCHANGED_START_OFFSET:
            self.start_offset = update.start_offset
            cut_before(self.batches, update.start_offset)
            cut_before(self.given_up, update.start_offset)
            if self.delays:
                self.delays = {offset: delay for offset, delay in self.delays.items() if offset >= self.start_offset}

    def snapshot(self, now_ms: int) -> ShareSnapshot:
        """Return the next snapshot of the state."""
        return ShareSnapshot(
            self.key,
            self.snapshot_epoch + 1,
            self.state_epoch,
            self.leader_epoch,
            self.start_offset,
            self.create_ms,
            now_ms,
            tuple(self.batches),
            self.delivery_complete_count,
            tuple(sorted(self.delays.values())),
            self.letters,
            tuple(self.given_up),
        )

    def snapshot_with(self, update: ShareUpdate, now_ms: int) -> ShareSnapshot:
        """Return the next snapshot, with a change that has not been applied."""
        changed = copy(self)
        changed.batches, changed.delays, changed.given_up = list(self.batches), dict(self.delays), list(self.given_up)
        changed.update(update)
        return changed.snapshot(now_ms)

    def _drop_delays(self, batches: tuple[StateBatch, ...]) -> None:
        """Drop the delays of records that are completed."""
        for first, last, state, _ in batches:
            if state == DeliveryState.AVAILABLE:
                continue
            if last - first < len(self.delays):
                for offset in range(first, last + 1):
                    self.delays.pop(offset, None)
            else:
                self.delays = {offset: delay for offset, delay in self.delays.items() if not first <= offset <= last}
