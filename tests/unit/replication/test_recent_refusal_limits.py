"""For how long a refused append explains gaps in the sequences of producers, and which of them."""

from __future__ import annotations

import pytest

from flowstone.errors import ApiError, ErrorCode
from flowstone.log.partition.producer_state import SequenceGap
from flowstone.ports.clock import SimulatedClock
from flowstone.replication.recent_refusal import GAP_AFTER_REFUSAL_S, RecentRefusal
from flowstone.wire.record_batch import Record, build_batch
from tests.support.partitions import ON_DISK, a_log


def refused(code: ErrorCode, age_s: float) -> RecentRefusal:
    clock = SimulatedClock()
    refusal = RecentRefusal(clock.monotonic)
    clock.advance(1000.0)
    refusal.note(code)
    clock.advance(age_s)
    return refusal


GAP = SequenceGap(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "a gap")


@pytest.mark.parametrize(
    ("age_s", "code"),
    [
        (0.0, ErrorCode.NOT_ENOUGH_REPLICAS),
        (GAP_AFTER_REFUSAL_S - 0.01, ErrorCode.NOT_ENOUGH_REPLICAS),
        (GAP_AFTER_REFUSAL_S, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ],
)
def test_a_gap_is_explained_for_a_limited_time(age_s: float, code: ErrorCode) -> None:
    assert refused(ErrorCode.NOT_ENOUGH_REPLICAS, age_s).explain(GAP).code is code


def test_an_error_of_the_disk_is_a_refusal_itself() -> None:
    refusal = refused(ErrorCode.NOT_ENOUGH_REPLICAS, 10.0)
    full = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "no space")
    assert refusal.explain(full) is full
    assert refusal.explain(GAP).code is ErrorCode.KAFKA_STORAGE_ERROR


def test_other_errors_are_answered_as_they_are_and_explain_nothing() -> None:
    refusal = refused(ErrorCode.NOT_ENOUGH_REPLICAS, 10.0)
    error = ApiError(ErrorCode.INVALID_RECORD, "no key")
    assert refusal.explain(error) is error
    assert refusal.explain(GAP) is GAP
    recent = refused(ErrorCode.NOT_ENOUGH_REPLICAS, 0.0)
    assert recent.explain(error) is error


def sequenced(producer_id: int, base_sequence: int) -> bytes:
    record = Record(0, 0, None, b"v")
    return build_batch([record], producer_id=producer_id, producer_epoch=0, base_sequence=base_sequence)


@pytest.mark.parametrize(
    ("producer_id", "base_sequence", "is_refused"),
    [(5, 1, True), (0, 1, True), (5, 0, False), (-1, 1, False), (-1, -1, False)],
)
def test_an_unknown_producer_that_begins_in_the_middle_is_refused_again(
    producer_id: int, base_sequence: int, is_refused: bool
) -> None:
    refusal = refused(ErrorCode.NOT_ENOUGH_REPLICAS, 0.0)
    producers = a_log(ON_DISK).producers
    if not is_refused:
        refusal.check_first_batch(sequenced(producer_id, base_sequence), producers)
        return
    with pytest.raises(ApiError) as again:
        refusal.check_first_batch(sequenced(producer_id, base_sequence), producers)
    assert again.value.code is ErrorCode.NOT_ENOUGH_REPLICAS


def test_a_refusal_of_long_ago_is_forgotten_at_the_next_batch() -> None:
    refusal = refused(ErrorCode.NOT_ENOUGH_REPLICAS, GAP_AFTER_REFUSAL_S)
    refusal.check_first_batch(sequenced(5, 1), a_log(ON_DISK).producers)
    assert refusal.code is None
    recent = refused(ErrorCode.NOT_ENOUGH_REPLICAS, GAP_AFTER_REFUSAL_S - 0.01)
    recent.check_first_batch(sequenced(5, 0), a_log(ON_DISK).producers)
    assert recent.code is ErrorCode.NOT_ENOUGH_REPLICAS
