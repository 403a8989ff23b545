"""The state of an active segment at a clean stop, without its indexes, so that the next start need not read it."""

from __future__ import annotations

from typing import NamedTuple


class LeftSegment(NamedTuple):
    """The state of an active segment at a clean stop."""

    base_offset: int
    size_bytes: int
    first_timestamp: int
    last_batch_offset: int
    last_batch_position: int
    next_offset: int
    has_transaction_index: bool
