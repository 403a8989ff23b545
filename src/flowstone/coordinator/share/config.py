"""Settings of the share coordinator, and limits that cannot be changed."""

from __future__ import annotations

from dataclasses import dataclass

STATE_BATCHES_MAX = 200_000
"""Ranges of one write: twice the largest lookahead of a group, whose ranges may each be one record."""

LETTER_RANGES_MAX = 500
"""Ranges of a batch of dead letters, which may each be one record."""

SNAPSHOTS_PER_CALL = 500
"""Snapshots of cold state written by one call, so that a large shard does not hold up the loop."""


@dataclass(frozen=True, slots=True)
class ShareCoordinatorConfig:
    """The coordinator's settings, with the meaning and the defaults of Kafka's settings."""

    # share.coordinator.snapshot.update.records.per.snapshot
    updates_per_snapshot: int = 500
