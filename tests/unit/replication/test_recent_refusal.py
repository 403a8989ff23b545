"""Gaps in a producer's sequence that a partition's own refusals have made."""

from __future__ import annotations

import pytest

from flowstone.config import TopicConfig
from flowstone.errors import ApiError, ErrorCode
from flowstone.log.partition.producer_state import BATCHES_PER_PRODUCER, SequenceGap
from flowstone.ports.clock import SimulatedClock
from flowstone.replication.recent_refusal import GAP_AFTER_REFUSAL_S, RecentRefusal
from flowstone.wire.record_batch import Record, build_batch
from tests.support.partitions import ON_DISK, a_log
from tests.unit.replication.replicas import ReplicaWorld


@pytest.fixture
def world() -> ReplicaWorld:
    return ReplicaWorld(TopicConfig(min_insync_replicas=2))


def append_of_producer(world: ReplicaWorld, sequence: int, producer_id: int = 9) -> ErrorCode:
    record = Record(0, 0, None, b"v")
    batch = build_batch([record], producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    try:
        world.partition.append(batch, -1)
    except ApiError as error:
        return error.code
    return ErrorCode.NONE


def test_a_gap_that_a_refusal_has_just_made_is_answered_with_the_refusal(world: ReplicaWorld):
    append_of_producer(world, 0)
    world.decide(isr=(1,))
    assert append_of_producer(world, 1) is ErrorCode.NOT_ENOUGH_REPLICAS
    world.decide(isr=(1, 2))
    assert append_of_producer(world, 2) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert append_of_producer(world, 1) is append_of_producer(world, 2) is ErrorCode.NONE


def test_a_gap_in_what_comes_to_a_new_leader_that_refused_a_moment_ago_is_answered_with_the_refusal():
    world = ReplicaWorld(leader=2)
    assert append_of_producer(world, 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.decide(leader=1, leader_epoch=4)
    append_of_producer(world, 0)
    assert append_of_producer(world, 2) is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("producer_id", [0, 9])  # the broker's first producer id is 0
def test_an_unknown_producer_does_not_begin_with_what_follows_on_a_refusal(world: ReplicaWorld, producer_id: int):
    world.wait(GAP_AFTER_REFUSAL_S)
    world.decide(isr=(1,))
    assert append_of_producer(world, 0, producer_id) is ErrorCode.NOT_ENOUGH_REPLICAS
    world.decide(isr=(1, 2))
    assert append_of_producer(world, 1, producer_id) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert append_of_producer(world, 0, producer_id) is append_of_producer(world, 1, producer_id) is ErrorCode.NONE


def test_an_unknown_producer_does_not_begin_with_what_followed_on_a_request_from_before_the_topic_was_known_here():
    world = ReplicaWorld()
    assert append_of_producer(world, 4) is ErrorCode.LEADER_NOT_AVAILABLE
    assert append_of_producer(world, 0) is ErrorCode.NONE


def test_an_unknown_producer_begins_anywhere_otherwise(world: ReplicaWorld):
    """Its records may have been deleted, or the topic it wrote to."""
    world.wait(GAP_AFTER_REFUSAL_S)
    assert append_of_producer(world, 4) is ErrorCode.NONE


def test_a_gap_long_after_a_refusal_is_a_gap(world: ReplicaWorld):
    append_of_producer(world, 0)
    world.decide(isr=(1,))
    append_of_producer(world, 1)
    world.decide(isr=(1, 2))
    world.wait(GAP_AFTER_REFUSAL_S)
    assert append_of_producer(world, 2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_from_long_ago_is_no_gap_even_right_after_a_refusal(world: ReplicaWorld):
    """To send it again would help nobody: it has been written, and its place is not remembered."""
    for sequence in range(BATCHES_PER_PRODUCER + 1):
        append_of_producer(world, sequence)
    world.decide(isr=(1,))
    append_of_producer(world, BATCHES_PER_PRODUCER + 1)
    world.decide(isr=(1, 2))
    assert append_of_producer(world, 0) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


# For how long, and for whom


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
