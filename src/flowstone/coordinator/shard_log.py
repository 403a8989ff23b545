"""A shard's log: its typed records appended, replayed when it loads, and rewritten before it grows without bound.

The log of a coordinator is mostly history: the thousandth commit of a partition makes the 999 before it worthless. When
it has become several times as large as what the shard's state takes, the state is appended once more, as ordinary
records and a part at a time, and then the log begins where that began. A crash at any point leaves a log that replays
to the same state: what is appended again says what is true at that moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from flowstone.coordinator.internal_log import InternalLog
from flowstone.coordinator.record_batches import RecordCodec, decode_batches, encode_batches
from flowstone.errors import ApiError, ErrorCode
from flowstone.ports.clock import Clock

# Read in a worker, replayed in one turn of the event loop: some hundred records, a few milliseconds.
LOAD_STEP_BYTES = 64 * 1024
# A log is left alone below this, and below so many times what the state took when it was last appended.
REWRITE_BYTES_MIN = 1 << 20
REWRITE_RATIO = 4
# Appended in one turn of the event loop.
REWRITE_STEP_BYTES = 64 * 1024


class Snapshot(Protocol):
    """A state, in parts: it goes on changing while they are asked for."""

    def parts(self) -> Sequence[str]: ...

    def records_of(self, part: str) -> Iterable[Any]:
        """The part as it is now; nothing if it is gone."""
        ...


class ReplayedState(Snapshot, Protocol):
    def replay(self, record: Any) -> None: ...


class ShardLog:
    def __init__(self, log: InternalLog, codec: RecordCodec, clock: Clock) -> None:
        self._log, self._codec, self._clock = log, codec, clock
        self._size_bytes = 0  # from the log's start on
        self._rewrite_at_bytes = REWRITE_BYTES_MIN

    @property
    def must_be_rewritten(self) -> bool:
        return self._size_bytes >= self._rewrite_at_bytes

    def append(self, records: Iterable[Any], now_ms: int) -> int:
        """The bytes it took. ApiError if the log does not take them all; the first ones may be in it then."""
        batches = encode_batches(map(self._codec.encode, records), now_ms, self._log.batch_bytes_max)
        for batch in batches:
            self._log.append(batch)
        appended_bytes = sum(map(len, batches))
        self._size_bytes += appended_bytes
        return appended_bytes

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
        offset, self._size_bytes = start_offset, 0
        replayed_count, replay = 0, state.replay
        while offset < end_offset:
            data = await self._log.read(offset, LOAD_STEP_BYTES)
            if not data:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log ends at {offset}, not at {end_offset}")
            for batch in decode_batches(data):
                for record in batch.records:
                    decoded = self._codec.decode(record.key, record.value) if record.key is not None else None
                    if decoded is not None and record.offset >= start_offset:
                        replay(decoded)
                replayed_count += len(batch.records)
                offset = batch.next_offset
                self._size_bytes += batch.size_bytes
        # Or every start would rewrite a large state, however little of its log is history.
        live_count = sum(1 for part in state.parts() for _ in state.records_of(part))
        self._rewrite_beyond(state_bytes=self._size_bytes * live_count // max(replayed_count, 1))

    async def rewrite(self, state: Snapshot, is_current: Callable[[], bool], now_ms: Callable[[], int]) -> None:
        """Appends the state again and lets the log begin there, unless the state is given up meanwhile. ApiError."""
        start_offset, self._size_bytes = self._log.log_end_offset, 0
        state_bytes = step_bytes = 0
        for part in state.parts():
            if step_bytes >= REWRITE_STEP_BYTES:
                step_bytes = 0
                await self._clock.sleep(0)
            if not is_current():
                return
            part_bytes = self.append(state.records_of(part), now_ms())
            state_bytes += part_bytes
            step_bytes += part_bytes
        self._rewrite_beyond(state_bytes)
        await self.wait_committed()
        if is_current():
            await self._log.delete_records_before(start_offset)

    def _rewrite_beyond(self, state_bytes: int) -> None:
        self._rewrite_at_bytes = max(REWRITE_BYTES_MIN, REWRITE_RATIO * state_bytes)
