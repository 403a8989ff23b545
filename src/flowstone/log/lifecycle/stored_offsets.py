"""Facts about a partition's log that are known before its segments are read: see `extent_witnesses`."""

from __future__ import annotations

from typing import NamedTuple

from flowstone.errors import StorageFault


class StoredOffsets(NamedTuple):
    """Offsets of a partition as stored by an earlier run. After a clean stop nothing needs to be checked."""

    recovery_point: int  # as checkpointed: everything below it was checked or written before
    log_start_offset: int
    clean: bool
    durable_end: int = 0  # as of the last flush, if that is known
    is_start_known: bool = False
    is_end_known: bool = False

    @property
    def promised_end(self) -> int:
        """Return the offset below which everything was durable: those records must not be missing or cut off."""
        return max(self.recovery_point, self.durable_end)


class OfflineLog(NamedTuple):
    """A partition whose directory cannot be used; its stored offsets are kept for the next start."""

    topic_id: bytes
    stored: StoredOffsets
    fault: StorageFault
    is_missing: bool = False  # whether the directory does not exist
