"""What the share groups of this broker have done since its start, over all share partitions that it leads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ShareCounts:
    deliveries: int = 0  # of records, the first ones and later ones
    redeliveries: int = 0
    acknowledgements: int = 0  # of records, that are durable or need not be
    dead_letters: int = 0
    failed_writes: int = 0
