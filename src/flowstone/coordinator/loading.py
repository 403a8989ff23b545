"""Replaying a whole internal log into a state machine, a little at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from flowstone.coordinator.internal_log import InternalLog
from flowstone.coordinator.record_batches import RecordCodec, decode_batches
from flowstone.errors import ApiError, ErrorCode

# Read in a worker, replayed in one turn of the event loop: some hundred records, a few milliseconds.
LOAD_STEP_BYTES = 64 * 1024


async def load(log: InternalLog, codec: RecordCodec, replay: Callable[[Any], None]) -> int:
    """Replays what the log holds, all of it committed; how many bytes that was. ApiError, StorageFault."""
    end_offset = log.log_end_offset
    offset, loaded_bytes = log.log_start_offset, 0
    while offset < end_offset:
        data = await log.read(offset, LOAD_STEP_BYTES)
        if not data:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log ends at {offset}, not at {end_offset}")
        loaded_bytes += len(data)
        for next_offset, records in decode_batches(data):
            for record in records:
                decoded = codec.decode(record.key, record.value) if record.key is not None else None
                if decoded is not None and record.offset >= offset:
                    replay(decoded)
            offset = next_offset
    return loaded_bytes


async def wait_committed(log: InternalLog, offset: int) -> None:
    """Returns once everything below `offset` is committed. ApiError if it will not be."""
    outcome: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

    def committed(code: ErrorCode) -> None:
        if not outcome.done():
            outcome.set_result(code)

    log.when_committed(offset, committed)
    code = await outcome
    if code is not ErrorCode.NONE:
        raise ApiError(code)
