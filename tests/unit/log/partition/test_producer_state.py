from __future__ import annotations

import struct

import pytest
from fastcrc.crc32 import iscsi as crc32c

from flowstone.errors import ApiError, ErrorCode
from flowstone.log.partition.producer_state import PRODUCER_IDLE_MS, SEQUENCE_MAX, ProducerStates, SequenceGap
from flowstone.log.partition.undecided_transactions import DecidedTransaction
from flowstone.wire.end_markers import EndMarker
from flowstone.wire.record_batch import CONTROL_FLAG, NO_SEQUENCE, TRANSACTIONAL_FLAG, BatchHeader

PRODUCER = 9
NOW_MS = 2_000


def header(first: int, count: int = 1, *, epoch: int = 0, producer_id: int = PRODUCER) -> BatchHeader:
    return BatchHeader(0, 49, 0, 2, 0, 0, count - 1, 0, 77, producer_id, epoch, first, count)


@pytest.fixture
def states() -> ProducerStates:
    """A producer that sent sequences 0 to 2 at offset 100, then 3 to 7 batches of one each."""
    made = ProducerStates()
    made.apply(header(0, 3), 100, seen_ms=1000)
    for number in range(3, 8):
        made.apply(header(number), 100 + number, seen_ms=1000 + number)
    return made


def refused(states: ProducerStates, batch: BatchHeader) -> ErrorCode:
    with pytest.raises(ApiError) as error:
        states.check(batch, NOW_MS)
    return error.value.code


def test_an_unknown_producer_may_begin_anywhere(states: ProducerStates) -> None:
    assert states.check(header(41, producer_id=1), NOW_MS) is None


def filled(*producer_ids: int) -> ProducerStates:
    """Producers that wrote a batch each, in this order, a millisecond apart."""
    made = ProducerStates()
    for offset, producer_id in enumerate(producer_ids):
        made.apply(header(0, producer_id=producer_id), offset, seen_ms=1000 + offset)
    return made


def known(states: ProducerStates, *producer_ids: int) -> list[int]:
    return [each for each in producer_ids if states.get(each) is not None]


@pytest.fixture
def three_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowstone.log.partition.producer_state.PRODUCERS_MAX", 3)


@pytest.mark.usefixtures("three_at_most")
def test_a_replica_that_must_take_a_producer_too_many_forgets_the_one_unused_for_longest() -> None:
    made = filled(1, 2, 3)
    made.apply(header(1, producer_id=1), 10, seen_ms=1010)
    made.apply(header(0, producer_id=4), 11, seen_ms=1011)
    assert known(made, 1, 2, 3, 4) == [1, 3, 4]


@pytest.mark.usefixtures("three_at_most")
def test_a_new_producer_is_refused_while_all_that_a_full_table_has_are_active() -> None:
    made = filled(1, 2, 3)
    with pytest.raises(ApiError, match="all of them have written within 10 minutes") as refused:
        made.check(header(0, producer_id=4), 1002 + PRODUCER_IDLE_MS - 3)
    assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert known(made, 1, 2, 3) == [1, 2, 3]


@pytest.mark.usefixtures("three_at_most")
def test_a_new_producer_takes_the_place_of_an_idle_one() -> None:
    made = filled(1, 2, 3)
    now_ms = 1000 + PRODUCER_IDLE_MS
    assert made.check(header(0, producer_id=4), now_ms) is None
    made.apply(header(0, producer_id=4), 9, seen_ms=now_ms)
    assert known(made, 1, 2, 3, 4) == [2, 3, 4]


@pytest.mark.usefixtures("three_at_most")
def test_what_follows_a_refused_batch_is_not_taken_before_it() -> None:
    made = filled(1, 2, 3)
    with pytest.raises(ApiError):
        made.check(header(0, producer_id=4), 1000 + PRODUCER_IDLE_MS - 1)
    with pytest.raises(ApiError):
        made.check(header(1, producer_id=4), 1000 + PRODUCER_IDLE_MS)
    assert made.check(header(0, producer_id=4), 1000 + PRODUCER_IDLE_MS) is None


@pytest.mark.usefixtures("three_at_most")
def test_a_snapshot_keeps_the_order_of_last_use() -> None:
    made = filled(1, 2, 3)
    made.apply(header(1, producer_id=1), 10, seen_ms=1010)
    loaded = ProducerStates.decode_snapshot(made.encode_snapshot())
    assert loaded is not None
    loaded.apply(header(0, producer_id=4), 11, seen_ms=1011)
    assert known(loaded, 1, 2, 3, 4) == [1, 3, 4]


@pytest.mark.usefixtures("three_at_most")
def test_a_snapshot_in_another_order_is_ordered_by_offsets() -> None:
    first, second = filled(1).encode_snapshot()[10:], filled(9, 2).encode_snapshot()[10:]
    body = struct.pack(">i", 2) + second[-len(first) :] + first  # Kafka writes them in the order of a hash table
    loaded = ProducerStates.decode_snapshot(struct.pack(">hI", 1, crc32c(body)) + body)
    assert loaded is not None
    for producer_id in (4, 5):
        loaded.apply(header(0, producer_id=producer_id), producer_id, seen_ms=1011)
    assert known(loaded, 1, 2, 4, 5) == [2, 4, 5]


def test_the_next_sequence_is_taken(states: ProducerStates) -> None:
    assert states.check(header(8, 4), NOW_MS) is None


def test_a_batch_sent_again_is_recognised_with_its_offsets(states: ProducerStates) -> None:
    again = states.check(header(5), NOW_MS)
    assert again is not None
    assert (again.base_offset, again.last_offset) == (105, 105)


def test_only_the_last_five_batches_are_remembered(states: ProducerStates) -> None:
    assert states.check(header(3), NOW_MS) is not None
    assert refused(states, header(0, 3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("first", [9, 0, 100])
def test_a_gap_in_the_sequence_is_refused(states: ProducerStates, first: int) -> None:
    assert refused(states, header(first, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize(("batch", "is_gap"), [(header(9), True), (header(0, 3), False), (header(4, epoch=1), True)])
def test_a_batch_that_is_ahead_is_distinguished_from_one_that_is_behind(
    states: ProducerStates, batch: BatchHeader, is_gap: bool
) -> None:
    with pytest.raises(ApiError) as error:
        states.check(batch, NOW_MS)
    assert isinstance(error.value, SequenceGap) == is_gap


def test_a_gap_may_lie_where_sequences_begin_again() -> None:
    made = ProducerStates()
    made.apply(header(SEQUENCE_MAX - 1), 0, seen_ms=1000)
    with pytest.raises(SequenceGap):
        made.check(header(3), NOW_MS)


def test_the_same_first_sequence_with_another_count_is_no_duplicate(states: ProducerStates) -> None:
    assert refused(states, header(7, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_older_epoch_is_fenced(states: ProducerStates) -> None:
    states.apply(header(0, epoch=3), 200, seen_ms=0)
    assert refused(states, header(1, epoch=2)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_an_epoch_is_fenced_once_a_newer_one_is_known(states: ProducerStates) -> None:
    states.apply(header(0, epoch=3), 200, seen_ms=2000)
    assert [states.is_fenced(PRODUCER, epoch) for epoch in (2, 3, 4)] == [True, False, False]
    assert not states.is_fenced(PRODUCER + 1, 0)


def test_a_newer_epoch_begins_at_sequence_zero(states: ProducerStates) -> None:
    assert states.check(header(0, epoch=1), NOW_MS) is None
    assert refused(states, header(8, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_newer_epoch_forgets_the_batches_of_the_older(states: ProducerStates) -> None:
    states.apply(header(0, epoch=1), 200, seen_ms=0)
    assert refused(states, header(5, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap_after_the_largest_int() -> None:
    states = ProducerStates()
    states.apply(header(SEQUENCE_MAX - 1, 2), 10, seen_ms=0)
    assert states.check(header(0), NOW_MS) is None


def test_a_batch_that_wraps_is_recognised_when_sent_again() -> None:
    states = ProducerStates()
    states.apply(header(SEQUENCE_MAX - 1, 4), 10, seen_ms=0)
    again = states.check(header(SEQUENCE_MAX - 1, 4), NOW_MS)
    assert again is not None
    assert again.base_offset == 10
    assert states.check(header(2), NOW_MS) is None


def test_idle_producers_expire_by_the_brokers_clock(states: ProducerStates) -> None:
    states.apply(header(0, producer_id=1), 300, seen_ms=5000)
    states.expire(now_ms=6000, expiration_ms=2000)
    assert states.get(PRODUCER) is None
    assert states.get(1) is not None


def test_a_snapshot_is_in_kafkas_format() -> None:
    states = ProducerStates()
    states.apply(header(4, 3), 100, seen_ms=1000)
    body = struct.pack(">iqhiqiqiq", 1, PRODUCER, 0, 6, 102, 2, 1000, -1, -1)
    assert states.encode_snapshot() == struct.pack(">hI", 1, crc32c(body)) + body


def test_a_snapshot_remembers_the_last_batch(states: ProducerStates) -> None:
    loaded = ProducerStates.decode_snapshot(states.encode_snapshot())
    assert loaded is not None
    assert loaded.check(header(7), NOW_MS) is not None
    assert loaded.check(header(8), NOW_MS) is None
    assert refused(loaded, header(9)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_that_a_snapshot_left_out_is_taken_for_a_repeat_without_an_offset(states: ProducerStates) -> None:
    restored = ProducerStates.decode_snapshot(states.encode_snapshot())
    assert restored is not None
    repeated = restored.check(header(5), NOW_MS)
    assert repeated is not None
    assert (repeated.base_offset, repeated.last_offset) == (-1, 106)
    assert refused(restored, header(9)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_once_five_batches_are_remembered_again_none_was_left_out(states: ProducerStates) -> None:
    restored = ProducerStates.decode_snapshot(states.encode_snapshot())
    assert restored is not None
    for number in range(8, 12):
        restored.apply(header(number), 100 + number, seen_ms=2000)
    assert refused(restored, header(5)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_any_damage_to_a_snapshot_is_detected(states: ProducerStates) -> None:
    data = states.encode_snapshot()
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 4
        assert ProducerStates.decode_snapshot(bytes(damaged)) is None
        assert ProducerStates.decode_snapshot(data[:position]) is None


# Transactions


def transactional(first: int, *, epoch: int = 0, producer_id: int = PRODUCER) -> BatchHeader:
    return header(first, epoch=epoch, producer_id=producer_id)._replace(attributes=TRANSACTIONAL_FLAG)


def marker_header(*, epoch: int = 0, producer_id: int = PRODUCER) -> BatchHeader:
    attributes = TRANSACTIONAL_FLAG | CONTROL_FLAG
    return BatchHeader(0, 66, 0, 2, 0, attributes, 0, 0, 77, producer_id, epoch, NO_SEQUENCE, 1)


ABORT, COMMIT = EndMarker(False, 5), EndMarker(True, 5)


def in_transaction(first: int = 0, *, epoch: int = 0) -> ProducerStates:
    """A producer whose transaction began at offset 100."""
    made = ProducerStates()
    made.apply(transactional(first, epoch=epoch), 100, seen_ms=1000)
    return made


def test_a_marker_decides_the_open_transaction_of_its_producer() -> None:
    made = in_transaction()
    decided = made.apply(marker_header(), 101, 1001, ABORT)
    assert decided == DecidedTransaction(PRODUCER, 100, 101, 102, is_commit=False)
    assert made.apply(marker_header(), 102, 1002, ABORT) is None, "no transaction is open"


def test_a_control_batch_that_is_no_marker_leaves_the_transaction_open() -> None:
    made = in_transaction()
    assert made.apply(marker_header(), 101, 1001, None) is None
    assert made.undecided is not None
    assert made.undecided.first_offset_of(PRODUCER) == 100


def test_sequences_go_on_after_a_marker_of_the_same_epoch() -> None:
    made = in_transaction()
    made.apply(marker_header(), 101, 1001, COMMIT)
    assert made.check(transactional(1), NOW_MS) is None


@pytest.mark.parametrize("ended", [COMMIT, ABORT])
def test_a_transactional_batch_does_not_repeat_one_of_a_transaction_that_has_ended(ended: EndMarker) -> None:
    made = in_transaction()
    assert made.check(transactional(0), NOW_MS) is not None, "sent again within its transaction"
    made.apply(marker_header(), 101, 1001, ended)
    assert refused(made, transactional(0)) is ErrorCode.UNKNOWN_PRODUCER_ID
    made.apply(transactional(1), 102, seen_ms=1002)
    assert refused(made, transactional(0)) is ErrorCode.UNKNOWN_PRODUCER_ID, "the next transaction is open"
    assert made.check(transactional(1), NOW_MS) is not None


def test_a_loaded_snapshot_tells_batches_of_the_open_transaction_from_earlier_ones() -> None:
    made = in_transaction()
    made.apply(transactional(1), 101, seen_ms=1001)
    loaded = ProducerStates.decode_snapshot(made.encode_snapshot())
    assert loaded is not None
    assert loaded.check(transactional(1), NOW_MS) is not None
    assert loaded.check(transactional(0), NOW_MS) is not None, "left out of the snapshot, but of this transaction"
    made.apply(marker_header(), 102, 1002, COMMIT)
    made.apply(transactional(2), 103, seen_ms=1003)
    loaded = ProducerStates.decode_snapshot(made.encode_snapshot())
    assert loaded is not None
    assert loaded.check(transactional(2), NOW_MS) is not None
    assert refused(loaded, transactional(1)) is ErrorCode.UNKNOWN_PRODUCER_ID


def test_sequences_begin_again_after_a_marker_of_the_next_epoch() -> None:
    made = in_transaction()
    made.apply(marker_header(epoch=1), 101, 1001, COMMIT)
    assert made.check(transactional(0, epoch=1), NOW_MS, 2) is None
    assert refused(made, transactional(1, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(made, transactional(1, epoch=0)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_new_epoch_within_a_transaction_leaves_it_open() -> None:
    made = in_transaction()
    made.apply(transactional(0, epoch=1), 101, seen_ms=1001)
    assert made.apply(marker_header(epoch=1), 102, 1002, COMMIT) == DecidedTransaction(PRODUCER, 100, 102, 103, True)


def test_a_plain_batch_within_its_producers_transaction_is_refused() -> None:
    made = in_transaction()
    assert refused(made, header(1)) is ErrorCode.INVALID_TXN_STATE
    assert made.check(header(0), NOW_MS) is not None, "a batch sent again is in the log already"


def test_an_unknown_producer_of_the_second_protocol_begins_at_0() -> None:
    made = ProducerStates()
    with pytest.raises(ApiError) as error:
        made.check(transactional(4), NOW_MS, 2)
    assert error.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert made.check(transactional(4), NOW_MS, 1) is None


@pytest.mark.parametrize(
    ("epoch", "is_open", "version", "expected"),
    [
        (2, True, 1, ErrorCode.INVALID_PRODUCER_EPOCH),
        (3, True, 1, None),
        (3, False, 1, None),
        (4, True, 1, None),
        (2, False, 2, ErrorCode.INVALID_PRODUCER_EPOCH),
        (3, True, 2, ErrorCode.INVALID_PRODUCER_EPOCH),
        (3, False, 2, None),
        (4, True, 2, None),
    ],
)
def test_the_epoch_of_a_marker_is_checked_by_its_protocol(
    epoch: int, is_open: bool, version: int, expected: ErrorCode | None
) -> None:
    made = in_transaction(epoch=3)
    if not is_open:
        made.apply(marker_header(epoch=3), 101, 1001, COMMIT)
    code = None
    try:
        made.check_marker(marker_header(epoch=epoch), COMMIT, version)
    except ApiError as error:
        code = error.code
    assert code is expected


def test_a_marker_of_an_older_coordinator_is_fenced() -> None:
    made = in_transaction()
    made.apply(marker_header(), 101, 1001, EndMarker(True, 5))
    with pytest.raises(ApiError) as error:
        made.check_marker(marker_header(), EndMarker(True, 4), 1)
    assert error.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    made.check_marker(marker_header(), EndMarker(True, 5), 1)


def test_a_marker_may_be_all_that_is_known_of_a_producer() -> None:
    made = ProducerStates()
    made.apply(marker_header(epoch=3), 101, 1001, COMMIT)
    loaded = ProducerStates.decode_snapshot(made.encode_snapshot())
    assert loaded is not None
    assert loaded.last_offsets() == ()
    assert loaded.check(transactional(0, epoch=3), NOW_MS) is None
    assert refused(loaded, transactional(1, epoch=3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_coordinators_own_batch_has_no_sequence_and_an_epoch_that_is_checked() -> None:
    made = in_transaction(NO_SEQUENCE, epoch=3)
    made.check_own(b"", transactional(NO_SEQUENCE, epoch=3), 1)
    with pytest.raises(ApiError) as error:
        made.check_own(b"", transactional(NO_SEQUENCE, epoch=2), 1)
    assert error.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.usefixtures("three_at_most")
def test_a_producer_with_an_open_transaction_is_never_forgotten() -> None:
    made = in_transaction()
    for offset in range(101, 110):
        made.apply(header(0, producer_id=offset), offset, seen_ms=offset)
    made.expire(10**9, 1000)
    assert known(made, PRODUCER, *range(101, 110)) == [PRODUCER]
    assert made.apply(marker_header(), 110, 1001, COMMIT) is not None
    made.expire(10**9, 1000)
    assert known(made, PRODUCER) == []


@pytest.mark.usefixtures("three_at_most")
def test_a_new_producer_is_refused_while_all_that_a_full_table_has_are_in_transactions() -> None:
    made = ProducerStates()
    for producer_id in range(3):
        made.apply(transactional(0, producer_id=producer_id), producer_id, seen_ms=0)
    with pytest.raises(ApiError) as error:
        made.check(header(0, producer_id=4), 2 * PRODUCER_IDLE_MS)
    assert error.value.code is ErrorCode.REQUEST_TIMED_OUT
    made.apply(header(0, producer_id=4), 4, seen_ms=0)  # a follower takes what its leader took
    assert known(made, 0, 1, 2, 4) == [0, 1, 2, 4]


def test_the_time_of_a_marker_counts_for_expiry() -> None:
    made = in_transaction()
    made.apply(marker_header(), 101, 5000, COMMIT)
    made.expire(5999, 1000)
    assert known(made, PRODUCER) == [PRODUCER]


def test_a_snapshot_keeps_transactions_and_coordinators() -> None:
    made = in_transaction()
    made.apply(transactional(0, producer_id=3), 105, seen_ms=1050)
    made.apply(marker_header(producer_id=4), 110, 1100, COMMIT)
    loaded = ProducerStates.decode_snapshot(made.encode_snapshot())
    assert loaded is not None
    assert loaded.encode_snapshot() == made.encode_snapshot()
    assert loaded.undecided is not None
    assert loaded.undecided.first_unstable_offset(1000) == 100
    with pytest.raises(ApiError):
        loaded.check_marker(marker_header(producer_id=4), EndMarker(True, 4), 1)


def test_a_snapshot_has_kafkas_fields_last() -> None:
    made = in_transaction()
    made.apply(marker_header(), 101, 1001, COMMIT)
    made.apply(transactional(1), 102, 1002)
    assert struct.unpack(">qhiqiqiq", made.encode_snapshot()[10:]) == (PRODUCER, 0, 1, 102, 0, 1002, 5, 102)
