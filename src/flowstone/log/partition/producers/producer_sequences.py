"""The sequence numbers of one idempotent producer in a partition: which batch is next, and which is a repetition.

`Producer` is what a partition remembers of a producer. `check_sequence` compares a client's batch with it by Kafka's
rules, which `producer_state` describes.
"""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.end_markers import NO_COORDINATOR_EPOCH
from flowstone.wire.record_batch import BatchHeader

BATCHES_PER_PRODUCER = 5
SEQUENCE_MAX = 2**31 - 1
NO_OFFSET = -1
# Sequences wrap around: a sequence at most this far back is behind, any other is ahead.
_BEHIND_MAX = SEQUENCE_MAX // 2


class SequenceGap(ApiError):
    """A batch is ahead of its producer's sequence: an earlier batch is missing. Kafka has no error code for this."""


class ProducerBatch(NamedTuple):
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    is_place_known: bool = True  # otherwise its offset is at or before `last_offset`

    @property
    def first_sequence(self) -> int:
        sequence = self.last_sequence - self.offset_delta
        return sequence if sequence >= 0 else sequence + SEQUENCE_MAX + 1

    @property
    def base_offset(self) -> int:
        return self.last_offset - self.offset_delta if self.is_place_known else NO_OFFSET


class Producer:
    __slots__ = ("batches", "coordinator_epoch", "epoch", "is_from_snapshot", "seen_ms")

    def __init__(self, epoch: int, seen_ms: int, *, is_from_snapshot: bool = False) -> None:
        self.epoch = epoch
        self.coordinator_epoch = NO_COORDINATOR_EPOCH  # of the producer's last marker
        self.is_from_snapshot = is_from_snapshot
        # when the broker last took a batch: the timestamps of records come from the producer's clock
        self.seen_ms = seen_ms
        # Empty after an epoch that began with a marker. A deque would take twice the memory of all the rest.
        self.batches: tuple[ProducerBatch, ...] = ()


def check_sequence(producer: Producer, header: BatchHeader) -> ProducerBatch | None:
    """Return the remembered batch that this one repeats, or None if it is the next. Raises ApiError if neither."""
    if header.producer_epoch != producer.epoch:
        if header.producer_epoch < producer.epoch:
            raise fenced(producer, header)
        if header.base_sequence:
            refuse(header, 0, "0, its epoch being new")
        return None
    if not producer.batches:
        return refuse(header, 0, "0, the first one after a marker") if header.base_sequence else None
    last = producer.batches[-1].last_sequence
    due = last + 1 if last < SEQUENCE_MAX else 0
    if header.base_sequence == due:
        return None
    for batch in producer.batches:
        if batch.last_sequence == header.last_sequence and batch.first_sequence == header.base_sequence:
            return batch
    return _forgotten(producer, header) or refuse(header, due, f"the one after {last}")


def fenced(producer: Producer, header: BatchHeader) -> ApiError:
    """Return the error for a batch of an older epoch."""
    return ApiError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {header.producer_id} has epoch {producer.epoch}, not {header.producer_epoch}",
    )


def refuse_ended(header: BatchHeader) -> NoReturn:
    """Raise ApiError: the batch has the sequences of a transaction that has ended."""
    raise ApiError(
        ErrorCode.UNKNOWN_PRODUCER_ID,
        f"producer {header.producer_id} epoch {header.producer_epoch}: sequence {header.base_sequence} belongs to a "
        "transaction that has ended; the producer must raise its epoch",
    )


def _forgotten(producer: Producer, header: BatchHeader) -> ProducerBatch | None:
    """Return the batch if it may repeat one of those that a snapshot left out."""
    first = producer.batches[0]
    behind = first.first_sequence - header.last_sequence & SEQUENCE_MAX
    if not producer.is_from_snapshot or len(producer.batches) == BATCHES_PER_PRODUCER or not 0 < behind <= _BEHIND_MAX:
        return None
    return ProducerBatch(header.last_sequence, first.base_offset - 1, 0, header.max_timestamp, is_place_known=False)


def refuse(header: BatchHeader, due: int, expected: str) -> NoReturn:
    """Raise ApiError, or SequenceGap if it is ahead: the batch does not begin at the sequence `due`."""
    is_ahead = header.base_sequence - due & SEQUENCE_MAX <= _BEHIND_MAX
    raise (SequenceGap if is_ahead else ApiError)(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} epoch {header.producer_epoch}: "
        f"sequence {header.base_sequence}, expected {expected}",
    )
