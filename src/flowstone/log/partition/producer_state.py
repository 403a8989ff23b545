"""The state of each idempotent producer of a partition: sequence numbers, to detect repeated and lost batches, and
and the open transaction.

Owns Kafka's rules for sequence numbers and end markers (its ProducerAppendInfo). Per producer id: the epoch, the last
five batches, as many as a producer may have in flight, the epoch of the coordinator that wrote its last marker, and the
first offset of its open transaction. All of it is derivable from the log: `apply` is the only way in, for what a client
sends, what a leader sends, and what a start or a truncation reads again. A snapshot, taken at each roll and at a clean
close, only shortens that.

The table is bounded and ordered by last use, which is the order of the producers' last offsets, on every replica and
after every recovery. A table that is full takes a new producer only in the place of an idle one: forgetting an active
producer would store its retry a second time. A follower and a recovery take what the leader took, and forget the
producer unused for longest. A producer with an open transaction is never forgotten: its marker could not close it.

Rules for a client's batch of a known producer:
- an older epoch is fenced; a newer one must begin at sequence 0;
- a batch whose first and last sequence are those of a remembered one is that one again;
- a snapshot, in Kafka's format, has only the last batch of a producer. Until five are remembered again, a batch from
  before the first of them is taken for one of those that were forgotten, sent again: it is in the log, its offset is
  not known (Kafka refuses it, and the client gives up what it cannot know to be there);
- anything else must follow the last sequence directly (2^31 - 1 is followed by 0; a producer of which only a marker is
  known begins at 0). An unknown producer may begin anywhere: its records may have been deleted. Under the second
  version of the transaction protocol it begins at 0, because every transaction does;
- while its transaction is open, a producer's batches must be transactional;
- a transactional batch repeats only batches of the open transaction. One with the sequences of a transaction that has
  ended is refused with UNKNOWN_PRODUCER_ID, upon which clients raise their epoch. Kafka acknowledges it as a repetition;
  but librdkafka, after it has aborted a transaction whose batch had not been acknowledged, uses that batch's sequences
  for the next transaction (ADR 0029).

Rules for an end marker: a coordinator of an older epoch is fenced. The marker's producer epoch must not be older than
the known one; under the second version it must be newer, or equal if no transaction is open, so that a late marker
never ends the next transaction. A marker of a newer epoch forgets the producer's sequences: they begin at 0 again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple, NoReturn

from flowstone.errors import ApiError, ErrorCode
from flowstone.log.partition.producer_snapshot import SnapshotEntry, decode_snapshot, encode_snapshot
from flowstone.log.partition.undecided_transactions import DecidedTransaction, OpenTransaction, UndecidedTransactions
from flowstone.types import Bytes
from flowstone.wire.end_markers import NO_COORDINATOR_EPOCH, EndMarker, read_end_marker
from flowstone.wire.record_batch import CONTROL_FLAG, NO_SEQUENCE, TRANSACTIONAL_FLAG, BatchHeader

NO_PRODUCER_ID = -1
BATCHES_PER_PRODUCER = 5
PRODUCERS_MAX = 100_000  # bounded because a client can invent as many ids as it likes
# A producer that has appended nothing for so long has given up what it could send again: twice the longest default
# of the common clients (delivery.timeout.ms 2 minutes, librdkafka's message.timeout.ms 5 minutes).
PRODUCER_IDLE_MS = 10 * 60 * 1000
GAP_AFTER_REFUSAL_MS = 10_000  # how long requests that follow a refused one may still arrive
SEQUENCE_MAX = 2**31 - 1
NO_OFFSET = -1
# The transaction protocols as the feature transaction.version counts them: from 2 on the epoch rises with each
# transaction. Of a batch with the first value nobody has asked the transaction coordinator.
UNVERIFIED, TRANSACTIONS_V2 = 0, 2

# Equivalent to the named tuple's constructor, which takes three times as long: one is made for every batch.
_new = tuple.__new__
_ALL_BUT_FIRST_OF_FIVE = slice(1 - BATCHES_PER_PRODUCER, None)
# Sequences wrap around: a sequence at most this far back is behind, any other is ahead.
_BEHIND_MAX = SEQUENCE_MAX // 2
_TRANSACTION_FLAGS = TRANSACTIONAL_FLAG | CONTROL_FLAG


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


class ProducerStates:
    def __init__(self) -> None:
        # Producers without an open transaction: the one unused for longest comes first.
        self._producers: OrderedDict[int, Producer] = OrderedDict()
        self._in_transaction: dict[int, Producer] = {}
        # None until the first transaction: most logs never have one, and skip the check.
        self.undecided: UndecidedTransactions | None = None
        self.has_transactions = False  # whether a transaction was begun, or a marker seen
        # By producer id: called with the producer epoch of each end marker that is applied.
        self.on_marker: dict[int, Callable[[int], object]] = {}
        self._refused_ms = -GAP_AFTER_REFUSAL_MS  # when a new producer was last refused

    def __len__(self) -> int:
        return len(self._producers) + len(self._in_transaction)

    def get(self, producer_id: int) -> Producer | None:
        return self._producers.get(producer_id) or self._in_transaction.get(producer_id)

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Return whether the producer has begun a transaction under this epoch that no marker has ended."""
        producer = self._in_transaction.get(producer_id)
        return producer is not None and producer.epoch == epoch

    def is_fenced(self, producer_id: int, epoch: int) -> bool:
        """Return whether a newer epoch of the producer is known."""
        producer = self.get(producer_id)
        return producer is not None and epoch < producer.epoch

    # What a leader takes

    def check(self, header: BatchHeader, now_ms: int, transaction_version: int = UNVERIFIED) -> ProducerBatch | None:
        """Return the remembered batch that this one repeats, or None if it is the next.

        Raises ApiError if it is neither, or if it is of a new producer and the table is full of active ones.
        """
        producer = self._producers.get(header.producer_id)
        if producer is not None:
            if producer.batches and header.producer_epoch == producer.epoch:
                last = producer.batches[-1].last_sequence
                if header.base_sequence == (last + 1 if last < SEQUENCE_MAX else 0):
                    return None  # the case of nearly all batches, decided without another call
            repeated = _check_sequence(producer, header)
            if repeated is not None and header.is_transactional:
                _refuse_ended(header)
            return repeated
        producer = self._in_transaction.get(header.producer_id)
        if producer is None:
            self._check_has_place(header, now_ms)
            if transaction_version >= TRANSACTIONS_V2 and header.base_sequence:
                _refuse(header, 0, "0, nothing of the producer being known")
            return None
        repeated = _check_sequence(producer, header)
        if repeated is None and not header.is_transactional:
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has an open transaction; its batch must be part of it",
            )
        if repeated is not None and self._is_before_transaction(header.producer_id, repeated):
            _refuse_ended(header)
        return repeated

    def _is_before_transaction(self, producer_id: int, batch: ProducerBatch) -> bool:
        """Return whether the batch was appended before the producer's open transaction began."""
        assert self.undecided is not None
        first_offset = self.undecided.first_offset_of(producer_id)
        return first_offset is not None and batch.last_offset < first_offset

    def check_own(self, batch: Bytes, header: BatchHeader, transaction_version: int) -> EndMarker | None:
        """Return the end marker in a batch made by the broker itself, or None if it is an ordinary batch.

        Raises ApiError if the epoch of its producer or of its coordinator has been replaced. Sequence numbers are not
        checked.
        """
        if header.is_control:
            marker = read_end_marker(batch, 0, header)
            assert marker is not None, "the only control batches of our own are end markers"
            self.check_marker(header, marker, transaction_version)
            return marker
        producer = self.get(header.producer_id)
        if producer is not None and header.producer_epoch < producer.epoch:
            raise _fenced(producer, header)
        return None

    def check_marker(self, header: BatchHeader, marker: EndMarker, transaction_version: int) -> None:
        """Raise ApiError if an end marker has an outdated coordinator epoch or producer epoch."""
        producer = self.get(header.producer_id)
        if producer is None:
            return
        if marker.coordinator_epoch < producer.coordinator_epoch:
            raise ApiError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"a marker of coordinator epoch {marker.coordinator_epoch} for producer {header.producer_id}, which "
                f"has one of {producer.coordinator_epoch}",
            )
        is_late = header.producer_epoch == producer.epoch and header.producer_id in self._in_transaction
        if header.producer_epoch < producer.epoch or (is_late and transaction_version >= TRANSACTIONS_V2):
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"a marker of epoch {header.producer_epoch} for producer {header.producer_id}, which has epoch "
                f"{producer.epoch}{' and begun another transaction' if is_late else ''}",
            )

    def _check_has_place(self, header: BatchHeader, now_ms: int) -> None:
        """Raise ApiError, which clients retry, if every producer of a full table is active.

        A new producer's batches after a refused one are refused as well: they must not be stored without the first one.
        """
        is_refused = False
        if len(self) >= PRODUCERS_MAX:
            oldest = next(iter(self._producers.values()), None)
            is_refused = oldest is None or now_ms - oldest.seen_ms < PRODUCER_IDLE_MS
        if is_refused:
            self._refused_ms = now_ms
        if is_refused or (header.base_sequence and 0 <= now_ms - self._refused_ms < GAP_AFTER_REFUSAL_MS):
            raise ApiError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"the partition remembers {len(self)} producers of {PRODUCERS_MAX} at most, and all of them "
                f"have written within {PRODUCER_IDLE_MS // 60_000} minutes; a new producer waits until one is idle",
            )

    # What is in the log

    def apply(
        self, header: BatchHeader, base_offset: int, seen_ms: int, marker: EndMarker | None = None
    ) -> DecidedTransaction | None:
        """Apply a producer's batch at `base_offset`; return the transaction that it decides, if any.

        `marker` is the end marker in a control batch. A control batch without one changes nothing.
        """
        # Unpacked at once: a named field of a tuple takes ten times as long as a local, and this runs for every batch.
        _, _, _, _, _, attributes, delta, _, newest_ms, producer_id, epoch, sequence, _ = header
        if attributes & CONTROL_FLAG:
            return None if marker is None else self._apply_marker(header, base_offset, seen_ms, marker)
        producers = self._producers
        producer = producers.get(producer_id)
        if producer is None or producer.epoch != epoch:
            producer = self._enter(producer_id, epoch, seen_ms)
        elif not attributes & TRANSACTIONAL_FLAG:
            producers.move_to_end(producer_id)
        if attributes & TRANSACTIONAL_FLAG:
            self._begin_transaction(producer_id, producer, base_offset)
        producer.seen_ms = seen_ms
        last_sequence = (sequence + delta) & SEQUENCE_MAX if sequence != NO_SEQUENCE else NO_SEQUENCE
        batch = _new(ProducerBatch, (last_sequence, base_offset + delta, delta, newest_ms, True))
        producer.batches = (*producer.batches[_ALL_BUT_FIRST_OF_FIVE], batch)
        return None

    def _enter(self, producer_id: int, epoch: int, seen_ms: int) -> Producer:
        """Return the producer's state under this epoch; the sequences of another epoch are forgotten."""
        producer = self.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = Producer(epoch, seen_ms)
            if len(self) > PRODUCERS_MAX and len(self._producers) > 1:
                self._producers.popitem(last=False)
        elif producer.epoch != epoch:
            producer.epoch, producer.batches, producer.is_from_snapshot = epoch, (), False
        if producer_id in self._producers:
            self._producers.move_to_end(producer_id)
        return producer

    def _begin_transaction(self, producer_id: int, producer: Producer, first_offset: int) -> None:
        """Open the producer's transaction, unless it is open already."""
        if producer_id in self._in_transaction:
            return
        if self.undecided is None:
            self.undecided, self.has_transactions = UndecidedTransactions(), True
        self._producers.pop(producer_id, None)
        self._in_transaction[producer_id] = producer
        self.undecided.begin(producer_id, first_offset)

    def _apply_marker(
        self, header: BatchHeader, offset: int, seen_ms: int, marker: EndMarker
    ) -> DecidedTransaction | None:
        producer_id = header.producer_id
        producer = self._enter(producer_id, header.producer_epoch, seen_ms)
        producer.coordinator_epoch, producer.seen_ms = marker.coordinator_epoch, seen_ms
        self.has_transactions = True
        if producer_id in self.on_marker:
            self.on_marker[producer_id](header.producer_epoch)
        if self._in_transaction.pop(producer_id, None) is None:
            return None
        assert self.undecided is not None
        self._producers[producer_id] = producer
        return self.undecided.decide(producer_id, offset, is_commit=marker.is_commit)

    def open_transactions(self) -> list[OpenTransaction]:
        """Return the open transactions in the order of their first offsets."""
        if self.undecided is None:
            return []
        return [
            OpenTransaction(producer_id, self._in_transaction[producer_id].epoch, first_offset)
            for producer_id, first_offset in self.undecided.items()
        ]

    def last_offsets(self) -> tuple[int, ...]:
        """Return the last offset of each producer, in order: the batches there suffice to rebuild the states."""
        return tuple(sorted(producer.batches[-1].last_offset for _, producer in self._all() if producer.batches))

    def known_by_markers(self) -> tuple[tuple[int, int], ...]:
        """Return the id and epoch of each producer that is known only by an end marker."""
        return tuple((each, producer.epoch) for each, producer in self._all() if not producer.batches)

    def _all(self) -> list[tuple[int, Producer]]:
        return [*self._producers.items(), *self._in_transaction.items()]

    # What is forgotten

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget every producer without an open transaction that has appended nothing for `expiration_ms`."""
        for producer_id in [
            each for each, producer in self._producers.items() if now_ms - producer.seen_ms >= expiration_ms
        ]:
            del self._producers[producer_id]

    def clear(self) -> None:
        """Forget every producer, and with them the open transactions."""
        self._producers.clear()
        self._in_transaction.clear()
        self.undecided, self.has_transactions = None, False

    def forget_sequences(self) -> None:
        """Forget all producers without an open transaction, and all sequences: the log continues as another topic's."""
        self._producers.clear()
        for producer in self._in_transaction.values():
            producer.batches, producer.is_from_snapshot = (), False

    # Snapshots

    def encode_snapshot(self) -> bytes:
        return encode_snapshot([*self.entries()])

    def entries(self) -> Iterator[SnapshotEntry]:
        """Yield the snapshot entry of each producer; the states may change meanwhile."""
        return (self._entry(producer_id, producer) for producer_id, producer in self._all())

    def _entry(self, producer_id: int, producer: Producer) -> SnapshotEntry:
        first_offset = self.undecided.first_offset_of(producer_id) if self.undecided is not None else None
        last = producer.batches[-1] if producer.batches else _NO_BATCH
        return SnapshotEntry(
            producer_id,
            producer.epoch,
            last.last_sequence,
            last.last_offset,
            last.offset_delta,
            producer.seen_ms,
            producer.coordinator_epoch,
            NO_OFFSET if first_offset is None else first_offset,
        )

    @classmethod
    def decode_snapshot(cls, data: bytes) -> ProducerStates | None:
        """Return the states in a snapshot, or None if the bytes are not a complete snapshot of version 1."""
        entries = decode_snapshot(data)
        if entries is None:
            return None
        states = cls()
        # Kafka writes entries in any order. The last use of a producer known only by a marker is known only by its
        # time.
        entries.sort(key=lambda entry: (entry.timestamp_ms, entry.last_offset))
        for entry in entries:
            producer = Producer(entry.epoch, entry.timestamp_ms, is_from_snapshot=True)
            producer.coordinator_epoch = entry.coordinator_epoch
            states.has_transactions |= entry.coordinator_epoch != NO_COORDINATOR_EPOCH
            if entry.last_offset >= 0:
                last = entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp_ms
                producer.batches = (ProducerBatch(*last),)
            states._producers[entry.producer_id] = producer
        is_open = [entry for entry in entries if entry.transaction_first_offset >= 0]
        for entry in sorted(is_open, key=lambda entry: entry.transaction_first_offset):
            producer = states._producers[entry.producer_id]
            states._begin_transaction(entry.producer_id, producer, entry.transaction_first_offset)
        return states


_NO_BATCH = ProducerBatch(NO_SEQUENCE, NO_OFFSET, 0, 0)


def _check_sequence(producer: Producer, header: BatchHeader) -> ProducerBatch | None:
    """Return the remembered batch that this one repeats, or None if it is the next. Raises ApiError if neither."""
    if header.producer_epoch != producer.epoch:
        if header.producer_epoch < producer.epoch:
            raise _fenced(producer, header)
        if header.base_sequence:
            _refuse(header, 0, "0, its epoch being new")
        return None
    if not producer.batches:
        return _refuse(header, 0, "0, the first one after a marker") if header.base_sequence else None
    last = producer.batches[-1].last_sequence
    due = last + 1 if last < SEQUENCE_MAX else 0
    if header.base_sequence == due:
        return None
    for batch in producer.batches:
        if batch.last_sequence == header.last_sequence and batch.first_sequence == header.base_sequence:
            return batch
    return _forgotten(producer, header) or _refuse(header, due, f"the one after {last}")


def _fenced(producer: Producer, header: BatchHeader) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {header.producer_id} has epoch {producer.epoch}, not {header.producer_epoch}",
    )


def _refuse_ended(header: BatchHeader) -> NoReturn:
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


def _refuse(header: BatchHeader, due: int, expected: str) -> NoReturn:
    is_ahead = header.base_sequence - due & SEQUENCE_MAX <= _BEHIND_MAX
    raise (SequenceGap if is_ahead else ApiError)(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} epoch {header.producer_epoch}: "
        f"sequence {header.base_sequence}, expected {expected}",
    )
