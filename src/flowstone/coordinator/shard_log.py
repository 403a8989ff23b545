"""A shard's log: its typed records appended, and replayed when it loads.

The log of a coordinator is mostly history: the thousandth commit of a partition makes the 999 before it worthless. Its
topic is compacted, so that what there is to replay does not grow without bound; nothing here knows of that, but for the
offsets that are missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from flowstone.coordinator.internal_log import InternalLog
from flowstone.coordinator.record_batches import RecordCodec, decode_batches, encode_batches
from flowstone.errors import ApiError, ErrorCode

# Read in a worker, replayed in one turn of the event loop: some hundred records, a few milliseconds.
LOAD_STEP_BYTES = 64 * 1024


class ReplayedState(Protocol):
    def replay(self, records: Sequence[Any]) -> None: ...


class ShardLog:
    def __init__(self, log: InternalLog, codec: RecordCodec) -> None:
        self._log, self._codec = log, codec

    def append(self, records: Sequence[Any], now_ms: int) -> None:
        """ApiError if the log does not take them all; the first ones may be in it then."""
        for batch in encode_batches(self._codec, records, now_ms, self._log.batch_bytes_max):
            self._log.append(batch)

    def when_committed(self, callback: Callable[[ErrorCode], None]) -> None:
        """Calls back once everything appended so far is committed, or will not be."""
        self._log.when_committed(self._log.log_end_offset, callback)

    async def wait_committed(self) -> None:
        """Returns once everything appended so far is committed. ApiError if it will not be."""
        outcome: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        self.when_committed(lambda code: None if outcome.done() else outcome.set_result(code))
        code = await outcome
        if code is not ErrorCode.NONE:
            raise ApiError(code)

    async def load(self, state: ReplayedState) -> None:
        """Replays the log, which must be committed, from its start to its end. ApiError, StorageFault."""
        start_offset, end_offset = self._log.log_start_offset, self._log.log_end_offset
        offset, decode = start_offset, self._codec.decode
        while offset < end_offset:
            data = await self._log.read(offset, LOAD_STEP_BYTES)
            if not data:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log ends at {offset}, not at {end_offset}")
            for batch in decode_batches(data):
                decoded = [
                    decode(key, value)
                    for record_offset, _, key, value, _ in batch.records
                    if key is not None and record_offset >= start_offset
                ]
                state.replay([each for each in decoded if each is not None])
                offset = batch.next_offset
