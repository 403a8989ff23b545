"""The interface of an internal topic's partition for a coordinator, which `broker.coordinators` implements.

A coordinator knows nothing of replicas, files or flushing: it appends, is notified when its records are committed, and
reads everything back when it loads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from flowstone.errors import ErrorCode


class InternalLog(Protocol):
    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def batch_bytes_max(self) -> int:
        """Return the size of the largest batch that `append` accepts."""
        ...

    @property
    def is_committed(self) -> bool:
        """Return whether everything appended so far is committed, as `when_committed` would tell at once."""
        ...

    def check_producer(self, batch: bytes, transaction_version: int) -> None:
        """Raise ApiError if the batch's producer epoch or transaction coordinator has been replaced in this log."""
        ...

    def append(self, batch: bytes) -> int:
        """Append like an acks=all produce; return the log's end after it. Raises ApiError if nothing was appended."""
        ...

    def when_committed(self, callback: Callable[[ErrorCode], None]) -> None:
        """Call back once, now or later, when all records appended so far are committed, or with the reason why not."""
        ...

    async def read(self, offset: int, max_bytes: int) -> bytes:
        """Return committed bytes from the batch that holds `offset` on, with at least one whole batch.

        The last batch may be cut short. The result is empty at the end of the committed records. Raises ApiError if the
        log cannot be read.
        """
        ...
