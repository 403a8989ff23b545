"""Which batches of a read_committed reader belong to aborted transactions. Pure: headers in, a verdict out.

A response lists the aborted transactions that overlap its range: a producer and the first offset of its transaction.
From that offset on the producer's batches are left out, until a control batch of its own ends the transaction. One that
has ended may be listed again with a later response: it is over, whatever the list says.
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
        """(producer id, first offset) of each, as a response lists them."""
        for producer_id, first_offset in aborted:
            heappush(self._listed, (first_offset, producer_id))

    def leaves_out(self, header: BatchHeader) -> bool:
        """Whether the batch's records are not to be seen. To be asked of every batch, in order."""
        while self._listed and self._listed[0][0] <= header.last_offset:
            first_offset, producer_id = heappop(self._listed)
            if first_offset > self._ended_at.get(producer_id, -1):
                self._aborting.add(producer_id)
        if header.is_control:
            self._ended_at[header.producer_id] = header.base_offset
            self._aborting.discard(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._aborting
