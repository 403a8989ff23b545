"""Counts of the transactions that a broker's shards have ended, and what they have open: for metrics.

Pure numbers, shared by all shards of a coordinator, which come and go. A decision counts when it is made; one whose
append fails is made again by another shard and counts again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(slots=True)
class TransactionCounts:
    committed: int = 0
    aborted: int = 0  # by anyone
    timed_out: int = 0  # aborted by the coordinator, also in `aborted`


class OpenTransactions(NamedTuple):
    """The transactions of a shard that are not complete."""

    ongoing: int
    ending: int  # decided; end markers are missing
    oldest_start_ms: int | None  # None: there is none
