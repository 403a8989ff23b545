"""A partition of an internal topic as a coordinator sees it. Whoever wires the broker adapts a real partition to it.

A coordinator knows nothing of replicas, files or flushing: it appends, is told when what it appended is committed, and
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
        """The largest batch that `append` takes."""
        ...

    def check_producer(self, batch: bytes, transaction_version: int) -> None:
        """Raise ApiError if the batch's producer epoch or transaction coordinator has been replaced in this log."""
        ...

    def append(self, batch: bytes) -> int:
        """Appends as an acks=all produce would; the log's end after it. ApiError: nothing was appended."""
        ...

    def when_committed(self, offset: int, callback: Callable[[ErrorCode], None]) -> None:
        """Calls back once, at once or later, when all below `offset` is committed, or will not be: then with why."""
        ...

    async def read(self, offset: int, max_bytes: int) -> bytes:
        """Committed bytes from the batch that holds `offset` on, at least one whole batch; the last may be cut short.

        Empty at the end of what is committed. ApiError if the log cannot be read.
        """
        ...
