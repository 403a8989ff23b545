"""Detection of batches of aborted transactions, for read_committed readers. Pure: uses batch headers only.

A response lists the aborted transactions in its range, each as a producer id and the first offset of the transaction.
From that offset on, the producer's batches are omitted, until a control batch of that producer ends the transaction. A
later response may list an ended transaction again, which has no effect.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from flowstone.wire.record_batch import BatchHeader


class AbortedTransactions:
    def __init__(self) -> None:
        self._listed: list[tuple[int, int]] = []  # a heap of (first offset, producer id)
        self._aborting: set[int] = set()
        self._ended_at: dict[int, int] = {}

    def add(self, aborted: Iterable[tuple[int, int]]) -> None:
        """Add aborted transactions from a response, as (producer id, first offset)."""
        for producer_id, first_offset in aborted:
            heappush(self._listed, (first_offset, producer_id))

    def leaves_out(self, header: BatchHeader) -> bool:
        """Return whether the batch's records must be omitted. Call it for every batch, in order."""
        while self._listed and self._listed[0][0] <= header.last_offset:
            first_offset, producer_id = heappop(self._listed)
            if first_offset > self._ended_at.get(producer_id, -1):
                self._aborting.add(producer_id)
        if header.is_control:
            self._ended_at[header.producer_id] = header.base_offset
            self._aborting.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._aborting
