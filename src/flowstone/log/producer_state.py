"""What a partition remembers of each idempotent producer, to tell new batches from repeated and lost ones.

Owns Kafka's rules for sequence numbers (its ProducerAppendInfo) and Kafka's snapshot format. Per producer id: the
epoch and the last five batches, as many as a producer may have in flight. All of it is derivable from the log's
headers; a snapshot, taken at each roll and at a clean close, only shortens that.

Rules for a client's batch of a known producer:
- an older epoch is fenced; a newer one must begin at sequence 0;
- a batch whose first and last sequence are those of a remembered one is that one again;
- a snapshot, in Kafka's format, has only the last batch of a producer. Until five are remembered again, a batch from
  before the first of them is taken for one of those that were forgotten, sent again: it is in the log, its offset is
  not known (Kafka refuses it, and the client gives up what it cannot know to be there);
- anything else must follow the last sequence directly (2^31 - 1 is followed by 0). An unknown producer may begin
  anywhere: its records may have been deleted.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import NamedTuple, NoReturn

from fastcrc.crc32 import iscsi as crc32c

from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.record_batch import BatchHeader

NO_PRODUCER_ID = -1
BATCHES_PER_PRODUCER = 5
# Beyond it the producer that came first is forgotten: a client can make up as many ids as it likes.
PRODUCERS_MAX = 100_000
SEQUENCE_MAX = 2**31 - 1
NO_OFFSET = -1

# Sequences go round: so far back is behind, farther is ahead.
_BEHIND_MAX = SEQUENCE_MAX // 2
_SNAPSHOT_VERSION = 1
_SNAPSHOT_HEAD = Struct(">hI")
_COUNT = Struct(">i")
# Producer id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch, open transaction's start.
_SNAPSHOT_ENTRY = Struct(">qhiqiqiq")


class SequenceGap(ApiError):
    """A batch that is ahead of its producer: another one should have come before it. Kafka has one code for both."""


class ProducerBatch(NamedTuple):
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int
    is_place_known: bool = True  # else it is at or before `last_offset`

    @property
    def first_sequence(self) -> int:
        sequence = self.last_sequence - self.offset_delta
        return sequence if sequence >= 0 else sequence + SEQUENCE_MAX + 1

    @property
    def base_offset(self) -> int:
        return self.last_offset - self.offset_delta if self.is_place_known else NO_OFFSET


class Producer:
    __slots__ = ("batches", "epoch", "is_from_snapshot", "seen_ms")

    def __init__(self, epoch: int, seen_ms: int, *, is_from_snapshot: bool = False) -> None:
        self.epoch = epoch
        self.is_from_snapshot = is_from_snapshot
        self.seen_ms = seen_ms  # when the broker last took a batch: a producer's own clock must not expire it
        self.batches: deque[ProducerBatch] = deque(maxlen=BATCHES_PER_PRODUCER)


class ProducerStates:
    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def get(self, producer_id: int) -> Producer | None:
        return self._producers.get(producer_id)

    def check(self, header: BatchHeader) -> ProducerBatch | None:
        """The remembered batch that this one repeats, None if it is the next; ApiError if it is neither."""
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return None
        if header.producer_epoch != producer.epoch:
            if header.producer_epoch < producer.epoch:
                raise ApiError(
                    ErrorCode.INVALID_PRODUCER_EPOCH,
                    f"producer {header.producer_id} has epoch {producer.epoch}, not {header.producer_epoch}",
                )
            if header.base_sequence:
                _refuse(header, 0, "0, its epoch being new")
            return None
        last = producer.batches[-1].last_sequence
        due = last + 1 if last < SEQUENCE_MAX else 0
        if header.base_sequence == due:
            return None
        for batch in producer.batches:
            if batch.last_sequence == header.last_sequence and batch.first_sequence == header.base_sequence:
                return batch
        return _forgotten(producer, header) or _refuse(header, due, f"the one after {last}")

    def update(self, header: BatchHeader, base_offset: int, seen_ms: int) -> None:
        """A batch of this producer is in the log at `base_offset`."""
        producer = self._producers.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            producer = self._producers[header.producer_id] = Producer(header.producer_epoch, seen_ms)
            if len(self._producers) > PRODUCERS_MAX:
                del self._producers[next(iter(self._producers))]
        producer.seen_ms = seen_ms
        delta = header.last_offset_delta
        producer.batches.append(ProducerBatch(header.last_sequence, base_offset + delta, delta, header.max_timestamp))

    def last_offsets(self) -> tuple[int, ...]:
        """Where the last batch of each producer ends, in order: what the states could be derived from again."""
        return tuple(sorted(producer.batches[-1].last_offset for producer in self._producers.values()))

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        for producer_id in [
            each for each, producer in self._producers.items() if now_ms - producer.seen_ms >= expiration_ms
        ]:
            del self._producers[producer_id]

    def clear(self) -> None:
        self._producers.clear()

    def encode_snapshot(self) -> bytes:
        entries = [_COUNT.pack(len(self._producers))]
        for producer_id, producer in self._producers.items():
            last = producer.batches[-1]
            entries.append(
                _SNAPSHOT_ENTRY.pack(
                    producer_id,
                    producer.epoch,
                    last.last_sequence,
                    last.last_offset,
                    last.offset_delta,
                    producer.seen_ms,
                    -1,
                    -1,
                )
            )
        body = b"".join(entries)
        return _SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, crc32c(body)) + body

    @classmethod
    def decode_snapshot(cls, data: bytes) -> ProducerStates | None:
        """None if the bytes are no whole snapshot of version 1."""
        if len(data) < _SNAPSHOT_HEAD.size + _COUNT.size:
            return None
        version, checksum = _SNAPSHOT_HEAD.unpack_from(data)
        body = memoryview(data)[_SNAPSHOT_HEAD.size :]
        (count,) = _COUNT.unpack_from(body)
        if version != _SNAPSHOT_VERSION or checksum != crc32c(body):
            return None
        if len(body) != _COUNT.size + count * _SNAPSHOT_ENTRY.size:
            return None
        states = cls()
        for producer_id, epoch, last_sequence, last_offset, delta, timestamp_ms, _, _ in _SNAPSHOT_ENTRY.iter_unpack(
            body[_COUNT.size :]
        ):
            producer = states._producers[producer_id] = Producer(epoch, timestamp_ms, is_from_snapshot=True)
            producer.batches.append(ProducerBatch(last_sequence, last_offset, delta, timestamp_ms))
        return states


def _forgotten(producer: Producer, header: BatchHeader) -> ProducerBatch | None:
    """The batch, if it may be one of those that a snapshot left out."""
    first = producer.batches[0]
    behind = first.first_sequence - header.last_sequence & SEQUENCE_MAX
    if not producer.is_from_snapshot or len(producer.batches) == BATCHES_PER_PRODUCER or not 0 < behind <= _BEHIND_MAX:
        return None
    return ProducerBatch(header.last_sequence, first.base_offset - 1, 0, header.max_timestamp, is_place_known=False)


def _refuse(header: BatchHeader, due: int, expected: str) -> NoReturn:
    is_ahead = header.base_sequence - due & SEQUENCE_MAX <= _BEHIND_MAX
    raise (SequenceGap if is_ahead else ApiError)(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} epoch {header.producer_epoch}: "
        f"sequence {header.base_sequence}, expected {expected}",
    )
