"""The last append that a partition refused, and its consequence for the sequences of idempotent producers. Pure.

A producer has several requests on their way. If one is refused and the next would be taken, the producer's sequence has
a gap that the broker itself has made. Told of a gap, librdkafka would take a new producer epoch and write again what it
had not heard of yet, even if that had been written. So for a moment after a refusal a gap is answered with the refusal
again: the producer repeats both requests, in order.
"""

from __future__ import annotations

from collections.abc import Callable

from flowstone.errors import ApiError, ErrorCode
from flowstone.log.partition.producers.producer_sequences import SequenceGap
from flowstone.log.partition.producers.producer_state import ProducerStates
from flowstone.types import Bytes
from flowstone.wire.record_batch import parse_header

# A gap in a producer's sequence is attributed to a refusal for this long: requests sent together arrive together.
GAP_AFTER_REFUSAL_S = 1.0


class RecentRefusal:
    __slots__ = ("_monotonic", "_refused_s", "code")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        """Create the state as if an append had just been refused: the broker may have refused some before a restart."""
        self._monotonic = monotonic
        self.code: ErrorCode | None = None  # None: no recent refusal
        self.note(ErrorCode.LEADER_NOT_AVAILABLE)

    def note(self, code: ErrorCode) -> None:
        self._refused_s, self.code = self._monotonic(), code

    def explain(self, error: ApiError) -> ApiError:
        """Return the error for the producer: for a gap just after a refusal, that refusal again, otherwise `error`."""
        if error.code is ErrorCode.KAFKA_STORAGE_ERROR:
            self.note(error.code)
        if isinstance(error, SequenceGap) and self._is_recent():
            return self._repeated()
        return error

    def check_first_batch(self, records: Bytes, producers: ProducerStates) -> None:
        """Raise ApiError if a producer that the log does not know begins with what follows a refused batch.

        Such a producer may begin with any sequence otherwise. Just after a refusal the first of its requests would be
        refused, the second taken, and the first never again.
        """
        if not self._is_recent():
            self.code = None
            return
        header = parse_header(records)
        if header.producer_id >= 0 and header.base_sequence > 0 and producers.get(header.producer_id) is None:
            raise self._repeated()

    def _is_recent(self) -> bool:
        return self.code is not None and self._monotonic() - self._refused_s < GAP_AFTER_REFUSAL_S

    def _repeated(self) -> ApiError:
        assert self.code is not None
        return ApiError(self.code, "a request that was sent before this one has just been refused")
