"""An internal log in memory, for coordinators: it commits, refuses and fails when a test says so.

Producers are fenced by the rules of a partition's log, whose code is used.
"""

from __future__ import annotations

from collections.abc import Callable

from flowstone.errors import ApiError, ErrorCode
from flowstone.log.partition.producers.producer_state import UNVERIFIED, ProducerStates
from flowstone.wire.record_batch import encode_header, parse_header


class MemoryInternalLog:
    """`commits_at_once` is off for tests that look at what happens before a commit."""

    batch_bytes_max = 1 << 20

    def __init__(self, *, commits_at_once: bool = True) -> None:
        self.commits_at_once = commits_at_once
        self.refuses_with: ErrorCode | None = None
        self.log_start_offset = self.log_end_offset = self.committed_offset = 0
        self.batches: list[bytes] = []
        self.producers = ProducerStates()
        self._waiting: list[Callable[[ErrorCode], None]] = []

    def check_producer(self, batch: bytes, transaction_version: int) -> None:
        self.producers.check_own(batch, parse_header(batch), transaction_version)

    @property
    def is_committed(self) -> bool:
        return self.committed_offset >= self.log_end_offset

    def append(self, batch: bytes) -> int:
        if self.refuses_with is not None:
            raise ApiError(self.refuses_with)
        assert len(batch) <= self.batch_bytes_max
        header = parse_header(batch)._replace(base_offset=self.log_end_offset)
        if header.producer_id >= 0:
            marker = self.producers.check_own(batch, header, UNVERIFIED)
            self.producers.apply(header, header.base_offset, 0, marker)
        payload = batch[-(header.size_bytes - len(encode_header(header, b""))) :]
        self.batches.append(encode_header(header, payload) + payload)
        self.log_end_offset = header.next_offset
        if self.commits_at_once:
            self.commit()
        return self.log_end_offset

    def commit(self) -> None:
        self.committed_offset = self.log_end_offset
        self._call_back(ErrorCode.NONE)

    def fail(self, code: ErrorCode) -> None:
        """Nothing that is waited for will be committed, and none of it is in the log any more."""
        self.log_end_offset = self.committed_offset
        self.batches = [batch for batch in self.batches if parse_header(batch).next_offset <= self.log_end_offset]
        self._call_back(code)

    def when_committed(self, callback: Callable[[ErrorCode], None]) -> None:
        if self.log_end_offset <= self.committed_offset:
            callback(ErrorCode.NONE)
        else:
            self._waiting.append(callback)

    async def read(self, offset: int, max_bytes: int) -> bytes:
        data = b""
        for batch in self.batches:
            header = parse_header(batch)
            if header.next_offset > offset and header.next_offset <= self.committed_offset:
                data += batch
        first = parse_header(data).size_bytes if data else 0
        return data[: max(max_bytes, first)]

    def _call_back(self, code: ErrorCode) -> None:
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback(code)
