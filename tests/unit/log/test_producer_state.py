from __future__ import annotations

import struct

import pytest
from fastcrc.crc32 import iscsi as crc32c

from flowstone.errors import ApiError, ErrorCode
from flowstone.log.producer_state import SEQUENCE_MAX, ProducerStates, SequenceGap
from flowstone.wire.record_batch import BatchHeader

PRODUCER = 9


def header(first: int, count: int = 1, *, epoch: int = 0, producer_id: int = PRODUCER) -> BatchHeader:
    return BatchHeader(0, 49, 0, 2, 0, 0, count - 1, 0, 77, producer_id, epoch, first, count)


@pytest.fixture
def states() -> ProducerStates:
    """A producer that sent sequences 0 to 2 at offset 100, then 3 to 7 batches of one each."""
    made = ProducerStates()
    made.update(header(0, 3), 100, seen_ms=1000)
    for number in range(3, 8):
        made.update(header(number), 100 + number, seen_ms=1000 + number)
    return made


def refused(states: ProducerStates, batch: BatchHeader) -> ErrorCode:
    with pytest.raises(ApiError) as error:
        states.check(batch)
    return error.value.code


def test_a_producer_nobody_knows_may_begin_anywhere(states: ProducerStates) -> None:
    assert states.check(header(41, producer_id=1)) is None


def test_the_number_of_producers_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowstone.log.producer_state.PRODUCERS_MAX", 3)
    made = ProducerStates()
    for producer_id in range(10):
        made.update(header(0, producer_id=producer_id), producer_id, seen_ms=1000)
    assert len(made) == 3
    assert made.get(9) is not None
    assert made.get(0) is None


def test_the_next_sequence_is_taken(states: ProducerStates) -> None:
    assert states.check(header(8, 4)) is None


def test_a_batch_sent_again_is_recognised_with_its_offsets(states: ProducerStates) -> None:
    again = states.check(header(5))
    assert again is not None
    assert (again.base_offset, again.last_offset) == (105, 105)


def test_only_the_last_five_batches_are_remembered(states: ProducerStates) -> None:
    assert states.check(header(3)) is not None
    assert refused(states, header(0, 3)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("first", [9, 0, 100])
def test_a_gap_in_the_sequence_is_refused(states: ProducerStates, first: int) -> None:
    assert refused(states, header(first, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize(("batch", "is_gap"), [(header(9), True), (header(0, 3), False), (header(4, epoch=1), True)])
def test_a_batch_that_is_ahead_is_told_from_one_that_is_behind(
    states: ProducerStates, batch: BatchHeader, is_gap: bool
) -> None:
    with pytest.raises(ApiError) as error:
        states.check(batch)
    assert isinstance(error.value, SequenceGap) == is_gap


def test_a_gap_may_lie_where_sequences_begin_again() -> None:
    made = ProducerStates()
    made.update(header(SEQUENCE_MAX - 1), 0, seen_ms=1000)
    with pytest.raises(SequenceGap):
        made.check(header(3))


def test_the_same_first_sequence_with_another_count_is_no_duplicate(states: ProducerStates) -> None:
    assert refused(states, header(7, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_older_epoch_is_fenced(states: ProducerStates) -> None:
    states.update(header(0, epoch=3), 200, seen_ms=0)
    assert refused(states, header(1, epoch=2)) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_newer_epoch_begins_at_sequence_zero(states: ProducerStates) -> None:
    assert states.check(header(0, epoch=1)) is None
    assert refused(states, header(8, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_newer_epoch_forgets_the_batches_of_the_older(states: ProducerStates) -> None:
    states.update(header(0, epoch=1), 200, seen_ms=0)
    assert refused(states, header(5, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap_after_the_largest_int() -> None:
    states = ProducerStates()
    states.update(header(SEQUENCE_MAX - 1, 2), 10, seen_ms=0)
    assert states.check(header(0)) is None


def test_a_batch_that_wraps_is_recognised_when_sent_again() -> None:
    states = ProducerStates()
    states.update(header(SEQUENCE_MAX - 1, 4), 10, seen_ms=0)
    again = states.check(header(SEQUENCE_MAX - 1, 4))
    assert again is not None
    assert again.base_offset == 10
    assert states.check(header(2)) is None


def test_idle_producers_expire_by_the_brokers_clock(states: ProducerStates) -> None:
    states.update(header(0, producer_id=1), 300, seen_ms=5000)
    states.expire(now_ms=6000, expiration_ms=2000)
    assert states.get(PRODUCER) is None
    assert states.get(1) is not None


def test_a_snapshot_is_in_kafkas_format() -> None:
    states = ProducerStates()
    states.update(header(4, 3), 100, seen_ms=1000)
    body = struct.pack(">iqhiqiqiq", 1, PRODUCER, 0, 6, 102, 2, 1000, -1, -1)
    assert states.encode_snapshot() == struct.pack(">hI", 1, crc32c(body)) + body


def test_a_snapshot_remembers_the_last_batch(states: ProducerStates) -> None:
    loaded = ProducerStates.decode_snapshot(states.encode_snapshot())
    assert loaded is not None
    assert loaded.check(header(7)) is not None
    assert loaded.check(header(8)) is None
    assert refused(loaded, header(9)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_that_a_snapshot_left_out_is_taken_for_a_repeat_without_an_offset(states: ProducerStates) -> None:
    restored = ProducerStates.decode_snapshot(states.encode_snapshot())
    assert restored is not None
    repeated = restored.check(header(5))
    assert repeated is not None
    assert (repeated.base_offset, repeated.last_offset) == (-1, 106)
    assert refused(restored, header(9)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_once_five_batches_are_remembered_again_none_was_left_out(states: ProducerStates) -> None:
    restored = ProducerStates.decode_snapshot(states.encode_snapshot())
    assert restored is not None
    for number in range(8, 12):
        restored.update(header(number), 100 + number, seen_ms=2000)
    assert refused(restored, header(5)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_no_damage_to_a_snapshot_goes_unseen(states: ProducerStates) -> None:
    data = states.encode_snapshot()
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 4
        assert ProducerStates.decode_snapshot(bytes(damaged)) is None
        assert ProducerStates.decode_snapshot(data[:position]) is None
