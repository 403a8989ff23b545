"""What a partition remembers of each idempotent producer, to tell new batches from repeated and lost ones.

Owns Kafka's rules for sequence numbers (its ProducerAppendInfo) and Kafka's snapshot format. Per producer id: the
epoch and the last five batches, as many as a producer may have in flight. All of it is derivable from the log's
headers; a snapshot, taken at each roll and at a clean close, only shortens that.

The table is bounded and ordered by last use, which is the order of the producers' last offsets, on every replica and
after every recovery. A table that is full takes a new producer only in the place of an idle one: forgetting an active
producer would store its retry a second time. A follower and a recovery take what the leader took, and forget the
producer unused for longest.

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

from collections import OrderedDict
from struct import Struct
from typing import NamedTuple, NoReturn

from fastcrc.crc32 import iscsi as crc32c

from flowstone.errors import ApiError, ErrorCode
from flowstone.wire.record_batch import BatchHeader

NO_PRODUCER_ID = -1
BATCHES_PER_PRODUCER = 5
PRODUCERS_MAX = 100_000  # a client can make up as many ids as it likes
# A producer that has appended nothing for so long has given up what it could send again: twice the longest default
# of the common clients (delivery.timeout.ms 2 minutes, librdkafka's message.timeout.ms 5 minutes).
PRODUCER_IDLE_MS = 10 * 60 * 1000
GAP_AFTER_REFUSAL_MS = 10_000  # how long the requests that follow a refused one may still be on their way
SEQUENCE_MAX = 2**31 - 1
NO_OFFSET = -1

# As a named tuple's constructor makes it, which takes three times as long: one is made for every batch.
_new = tuple.__new__
_ALL_BUT_FIRST_OF_FIVE = slice(1 - BATCHES_PER_PRODUCER, None)
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
        self.batches: tuple[ProducerBatch, ...] = ()  # a deque would take twice the memory of all the rest


class ProducerStates:
    def __init__(self) -> None:
        self._producers: OrderedDict[int, Producer] = OrderedDict()  # the one unused for longest comes first
        self._refused_ms = -GAP_AFTER_REFUSAL_MS  # when a new producer was last refused

    def __len__(self) -> int:
        return len(self._producers)

    def get(self, producer_id: int) -> Producer | None:
        return self._producers.get(producer_id)

    def check(self, header: BatchHeader, now_ms: int) -> ProducerBatch | None:
        """Return the remembered batch that this one repeats, or None if it is the next.

        Raises ApiError if it is neither, or if it is of a new producer and the table is full of active ones.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            self._check_has_place(header, now_ms)
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

    def _check_has_place(self, header: BatchHeader, now_ms: int) -> None:
        """Raise ApiError, which clients retry, if every producer of a full table is active.

        What follows a refused batch of a new producer is refused as well: it must not be stored without the first one.
        """
        if len(self._producers) >= PRODUCERS_MAX:
            oldest = next(iter(self._producers.values()))
            is_refused = now_ms - oldest.seen_ms < PRODUCER_IDLE_MS
        else:
            is_refused = False
        if is_refused:
            self._refused_ms = now_ms
        if is_refused or (header.base_sequence and 0 <= now_ms - self._refused_ms < GAP_AFTER_REFUSAL_MS):
            raise ApiError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"the partition remembers {len(self._producers)} producers of {PRODUCERS_MAX} at most, and all of them "
                f"have written within {PRODUCER_IDLE_MS // 60_000} minutes; a new producer waits until one is idle",
            )

    def update(self, header: BatchHeader, base_offset: int, seen_ms: int) -> None:
        """A batch of this producer is in the log at `base_offset`."""
        producers, producer_id = self._producers, header.producer_id
        producer = producers.get(producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            producer = producers[producer_id] = Producer(header.producer_epoch, seen_ms)
            if len(producers) > PRODUCERS_MAX:
                producers.popitem(last=False)
        producers.move_to_end(producer_id)
        producer.seen_ms = seen_ms
        delta = header.last_offset_delta
        batch = _new(ProducerBatch, (header.last_sequence, base_offset + delta, delta, header.max_timestamp, True))
        producer.batches = (*producer.batches[_ALL_BUT_FIRST_OF_FIVE], batch)

    def last_offsets(self) -> tuple[int, ...]:
        """Where the last batch of each producer ends, in order: what the states could be derived from again."""
        return tuple(sorted(producer.batches[-1].last_offset for producer in self._producers.values()))

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget every producer that has appended nothing for `expiration_ms`."""
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
        entries = sorted(_SNAPSHOT_ENTRY.iter_unpack(body[_COUNT.size :]), key=_last_offset)  # Kafka's are in any order
        for producer_id, epoch, last_sequence, last_offset, delta, timestamp_ms, _, _ in entries:
            producer = states._producers[producer_id] = Producer(epoch, timestamp_ms, is_from_snapshot=True)
            producer.batches = (ProducerBatch(last_sequence, last_offset, delta, timestamp_ms),)
        return states


def _last_offset(entry: tuple[int, ...]) -> int:
    return entry[3]


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
