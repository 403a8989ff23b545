"""The log of a shard: typed records are appended, and replayed when the shard loads.

Most of a coordinator's log is history: the thousandth commit of a partition makes the 999 before it obsolete. Its topic
is compacted, so that the time to replay it stays bounded; the only effect here are gaps in the offsets.

A batch's header is passed on: the transaction that its records belong to, and whether it is a marker, which ends one.
Records of an unknown kind, and control records that are not markers, are skipped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from flowstone.coordinator.effects import TransactionalProducer
from flowstone.coordinator.internal_log import InternalLog
from flowstone.coordinator.record_batches import Batch, RecordCodec, decode_batches, encode_batches
from flowstone.coordinator.skipped_records import SkippedRecords
from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.end_markers import EndMarker, end_marker
from flowstone.wire.record_batch import CONTROL_FLAG, TRANSACTIONAL_FLAG

# Bytes read by a worker and replayed in one iteration of the loop: some hundred records, a few milliseconds.
LOAD_STEP_BYTES = 64 * 1024


class ProducerFenced(ApiError):
    """The log refuses a producer or transaction coordinator because its epoch has been replaced."""


class ReplayedState(Protocol):
    def replay(self, records: Sequence[Any], producer: TransactionalProducer | None = None) -> None:
        """Apply records of one batch, in their order. With a producer they belong to its open transaction."""
        ...

    def replay_marker(self, producer: TransactionalProducer, marker: EndMarker) -> None:
        """Commit or drop the producer's records since its last marker; they may have an older epoch than the marker."""
        ...


class ShardLog:
    def __init__(self, name: str, log: InternalLog, codec: RecordCodec, skipped: SkippedRecords) -> None:
        self._name, self._log, self._codec, self._skipped = name, log, codec, skipped

    def append(self, records: Sequence[Any], now_ms: int) -> None:
        """Append records. Raises ApiError if the log does not take all of them; the first ones may be appended."""
        self.append_batches(encode_batches(self._codec, records, now_ms, self._log.batch_bytes_max))

    def transaction_batches(
        self,
        producer: TransactionalProducer,
        records: Sequence[Any],
        marker: EndMarker | None,
        now_ms: int,
        transaction_version: int,
    ) -> list[bytes]:
        """Return the batches of records of a producer's transaction, and of its end marker, for `append_batches`.

        Raises ProducerFenced if the log would refuse them for their epochs.
        """
        batches = []
        if records:
            batches = encode_batches(self._codec, records, now_ms, self._log.batch_bytes_max, producer)
        if marker is not None:
            batches.append(end_marker(*producer, marker.coordinator_epoch, marker.is_commit, now_ms))
        try:
            for batch in batches:
                self._log.check_producer(batch, transaction_version)
        except ApiError as error:
            raise ProducerFenced(error.code, str(error)) from error
        return batches

    def append_batches(self, batches: Sequence[bytes]) -> None:
        """Append batches. Raises ApiError if the log does not take all of them; the first ones may be appended."""
        for batch in batches:
            self._log.append(batch)

    @property
    def is_committed(self) -> bool:
        """Return whether everything appended so far is known to be committed."""
        return self._log.is_committed

    async def wait_committed(self) -> None:
        """Wait until everything appended so far is committed. Raises ApiError if it cannot be."""
        outcome: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        self._log.when_committed(lambda code: None if outcome.done() else outcome.set_result(code))
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
            for batch in decode_batches(data):
                self._replay(state, batch, start_offset)
                offset = batch.header.next_offset

    def _replay(self, state: ReplayedState, batch: Batch, start_offset: int) -> None:
        header, attributes = batch.header, batch.header.attributes
        if attributes & CONTROL_FLAG:
            if batch.marker is not None and header.base_offset >= start_offset:
                producer = TransactionalProducer(header.producer_id, header.producer_epoch)
                state.replay_marker(producer, batch.marker)
            return
        decode, decoded = self._codec.decode, []
        for record_offset, _, key, value, _ in batch.records:
            if key is not None and record_offset >= start_offset:
                record = decode(key, value)
                if record is not None:
                    decoded.append(record)
                else:
                    self._skipped.skipped(self._name, key, value)
        if attributes & TRANSACTIONAL_FLAG:
            state.replay(decoded, TransactionalProducer(header.producer_id, header.producer_epoch))
        else:
            state.replay(decoded)
