from __future__ import annotations

import pytest

from flowstone.errors import ApiError, ErrorCode
from flowstone.log.partition.producers.producer_sequences import (
    NO_OFFSET,
    SEQUENCE_MAX,
    Producer,
    ProducerBatch,
    SequenceGap,
    check_sequence,
    refuse_ended,
)
from flowstone.wire.record_batch import BatchHeader


def header(first: int, count: int = 1, *, epoch: int = 3) -> BatchHeader:
    return BatchHeader(0, 49, 0, 2, 0, 0, count - 1, 0, 77, 9, epoch, first, count)


def producer(*batches: ProducerBatch, is_from_snapshot: bool = False) -> Producer:
    made = Producer(3, 1000, is_from_snapshot=is_from_snapshot)
    made.batches = batches
    return made


def test_a_batch_is_next_or_a_repetition_or_refused() -> None:
    known = producer(ProducerBatch(4, 104, 1, 0), ProducerBatch(6, 106, 1, 0))
    assert check_sequence(known, header(7)) is None
    assert check_sequence(known, header(3, 2)) == known.batches[0]
    with pytest.raises(ApiError, match="expected the one after 6") as behind:
        check_sequence(known, header(3, 3))
    assert not isinstance(behind.value, SequenceGap)
    with pytest.raises(SequenceGap):
        check_sequence(known, header(8))


def test_sequences_begin_at_zero_with_an_epoch() -> None:
    assert check_sequence(producer(), header(0)) is None
    assert check_sequence(producer(ProducerBatch(4, 104, 1, 0)), header(0, epoch=4)) is None
    for refused in (header(1, epoch=4), header(5, epoch=2)):
        with pytest.raises(ApiError):
            check_sequence(producer(ProducerBatch(4, 104, 1, 0)), refused)


def test_a_batch_that_wraps_has_its_first_sequence_before_the_wrap() -> None:
    batch = ProducerBatch(1, 110, 3, 0)
    assert (batch.first_sequence, batch.base_offset) == (SEQUENCE_MAX - 1, 107)
    assert check_sequence(producer(ProducerBatch(SEQUENCE_MAX, 100, 0, 0)), header(0)) is None


def test_a_batch_that_a_snapshot_left_out_has_no_known_offset() -> None:
    left_out = check_sequence(producer(ProducerBatch(6, 106, 1, 0), is_from_snapshot=True), header(2))
    assert left_out is not None
    assert (left_out.base_offset, left_out.last_offset) == (NO_OFFSET, 104)


def test_the_sequences_of_an_ended_transaction_ask_for_another_epoch() -> None:
    with pytest.raises(ApiError) as error:
        refuse_ended(header(2))
    assert error.value.code is ErrorCode.UNKNOWN_PRODUCER_ID
