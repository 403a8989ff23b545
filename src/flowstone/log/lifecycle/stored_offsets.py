"""What is known of a partition's log before its segments are looked at: see `witnesses`."""

from __future__ import annotations

from typing import NamedTuple

from flowstone.errors import StorageFault


class StoredOffsets(NamedTuple):
    """Offsets of a partition as an earlier life has stored them. A clean stop left nothing to check."""

    recovery_point: int  # as checkpointed: everything below it was checked or written before
    log_start_offset: int
    clean: bool
    durable_end: int = 0  # as of the last flush, if that is known
    is_start_known: bool = False
    is_end_known: bool = False

    @property
    def promised_end(self) -> int:
        """Everything below it was durable: nothing of it may be missing, and nothing is cut off."""
        return max(self.recovery_point, self.durable_end)


class OfflineLog(NamedTuple):
    """A partition whose directory cannot be used; what is stored of it is kept for the next start."""

    topic_id: bytes
    stored: StoredOffsets
    fault: StorageFault
    is_missing: bool = False  # there is no directory at all
