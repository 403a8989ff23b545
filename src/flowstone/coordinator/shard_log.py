"""A shard's log: its typed records appended, and replayed when it loads.

The log of a coordinator is mostly history: the thousandth commit of a partition makes the 999 before it worthless. Its
topic is compacted, so that what there is to replay does not grow without bound; nothing here knows of that, but for the
offsets that are missing.

What a batch's header says is passed on: whose transaction its records belong to, and that it is a marker, which ends
one. Records of an unknown kind, and control records that are no markers, are passed over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from flowstone.coordinator.effects import TransactionalProducer
from flowstone.coordinator.internal_log import InternalLog
from flowstone.coordinator.record_batches import RecordCodec, decode_batches, decode_stored_marker, encode_batches
from flowstone.coordinator.skipped_records import SkippedRecords, UnknownRecord
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.record_batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, BatchHeader, Record
from flowstone.wire.transaction_markers import TransactionMarker, encode_marker

# Read in a worker, replayed in one turn of the event loop: some hundred records, a few milliseconds.
LOAD_STEP_BYTES = 64 * 1024


class ReplayedState(Protocol):
    def replay(self, records: Sequence[Any], producer: TransactionalProducer | None = None) -> None:
        """Apply records of one batch, in their order. With a producer they belong to its open transaction."""
        ...

    def replay_marker(self, marker: TransactionMarker) -> None:
        """Apply or drop what the producer has written since its last marker."""
        ...


class ShardLog:
    def __init__(self, name: str, log: InternalLog, codec: RecordCodec, skipped: SkippedRecords) -> None:
        self._name, self._log, self._codec, self._skipped = name, log, codec, skipped

    def append(self, records: Sequence[Any], now_ms: int, producer: TransactionalProducer | None = None) -> None:
        """Append records, with a producer as a part of its transaction.

        Raises ApiError if the log does not take them all; the first ones may be in it then.
        """
        for batch in encode_batches(self._codec, records, now_ms, self._log.batch_bytes_max, producer):
            self._log.append(batch)

    def append_marker(self, marker: TransactionMarker, now_ms: int) -> None:
        """Append a transaction's marker. Raises ApiError if the log does not take it."""
        self._log.append(encode_marker(marker, now_ms))

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
        """Replay the log, which must be committed, from its start to its end. Raises ApiError or StorageFault."""
        start_offset, end_offset = self._log.log_start_offset, self._log.log_end_offset
        offset = start_offset
        while offset < end_offset:
            data = await self._log.read(offset, LOAD_STEP_BYTES)
            if not data:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log ends at {offset}, not at {end_offset}")
            for header, records in decode_batches(data):
                self._replay(state, header, records, start_offset)
                offset = header.next_offset

    def _replay(self, state: ReplayedState, header: BatchHeader, records: list[Record], start_offset: int) -> None:
        attributes = header.attributes
        if attributes & CONTROL_FLAG:
            marker = decode_stored_marker(header, records)
            if marker is not None and header.last_offset >= start_offset:
                state.replay_marker(marker)
            return
        decode, decoded = self._codec.decode, []
        for record_offset, _, key, value, _ in records:
            if key is not None and record_offset >= start_offset:
                try:
                    decoded.append(decode(key, value))
                except UnknownRecord as unknown:
                    self._skipped.skipped(self._name, str(unknown))
        if attributes & TRANSACTIONAL_FLAG:
            state.replay(decoded, TransactionalProducer(header.producer_id, header.producer_epoch))
        else:
            state.replay(decoded)
