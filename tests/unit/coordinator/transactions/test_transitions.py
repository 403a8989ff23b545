"""Every field of the transaction that each event stores: what changes, and what stays as it was."""

from __future__ import annotations

import pytest

from flowstone.coordinator.transactions import transitions
from flowstone.coordinator.transactions.messages import V1, V2
from flowstone.coordinator.transactions.records import (
    LAST_CLIENT_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    PRODUCER_EPOCH_MAX,
    TransactionState,
    TransactionStored,
)
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition

ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
ONGOING = TransactionStored(
    "x", 7, 3, 60_000, TransactionState.ONGOING, 1000, frozenset({ONE}), 900, 6, NO_PRODUCER_ID, 2, 1
)
EMPTY = ONGOING._replace(state=TransactionState.EMPTY, partitions=frozenset(), start_ms=NO_TIMESTAMP)


def changes(before: TransactionStored, after: TransactionStored) -> dict[str, object]:
    """The fields that differ."""
    return {name: value for name, value in after._asdict().items() if value != getattr(before, name)}


def test_a_new_transactional_id_begins_with_epoch_zero() -> None:
    made = transitions.created("x", 7, 60_000, 1000)
    assert made == TransactionStored("x", 7, 0, 60_000, TransactionState.EMPTY, 1000)
    assert (made.start_ms, made.previous_producer_id, made.next_producer_id) == (NO_TIMESTAMP, -1, -1)


def test_raising_the_epoch_empties_the_transaction() -> None:
    after = transitions.epoch_raised(ONGOING, 50_000, 2000, last_epoch=NO_PRODUCER_EPOCH)
    assert changes(ONGOING, after) == {
        "producer_epoch": 4,
        "timeout_ms": 50_000,
        "state": TransactionState.EMPTY,
        "last_update_ms": 2000,
        "partitions": frozenset(),
        "start_ms": NO_TIMESTAMP,
        "previous_producer_id": 7,
        "last_producer_epoch": NO_PRODUCER_EPOCH,
    }


def test_another_producer_id_begins_with_epoch_zero() -> None:
    after = transitions.producer_id_replaced(EMPTY, 8, 50_000, 2000, last_epoch=3)
    assert changes(EMPTY, after) == {
        "producer_id": 8,
        "producer_epoch": 0,
        "timeout_ms": 50_000,
        "last_update_ms": 2000,
        "previous_producer_id": 7,
        "last_producer_epoch": 3,
    }


def test_an_initialization_whose_response_was_lost_keeps_id_and_epoch() -> None:
    after = transitions.initialized_again(EMPTY, 50_000, 2000)
    assert changes(EMPTY, after) == {"timeout_ms": 50_000, "last_update_ms": 2000}


def test_the_first_partition_begins_the_transaction_and_the_next_one_does_not() -> None:
    begun = transitions.partitions_added(EMPTY, frozenset({ONE}), 2, 2000)
    assert changes(EMPTY, begun) == {
        "state": TransactionState.ONGOING,
        "last_update_ms": 2000,
        "partitions": frozenset({ONE}),
        "start_ms": 2000,
        "previous_producer_id": 7,
        "client_version": 2,
    }
    after = transitions.partitions_added(begun, frozenset({OTHER}), 2, 3000)
    assert changes(begun, after) == {"last_update_ms": 3000, "partitions": frozenset({ONE, OTHER})}


@pytest.mark.parametrize(
    ("is_commit", "state"), [(True, TransactionState.PREPARE_COMMIT), (False, TransactionState.PREPARE_ABORT)]
)
def test_a_decision_of_the_first_protocol_keeps_the_epoch(is_commit: bool, state: TransactionState) -> None:
    before = ONGOING._replace(client_version=2, next_producer_id=5)
    after = transitions.prepared_v1(before, is_commit=is_commit, now_ms=2000)
    assert changes(before, after) == {
        "state": state,
        "last_update_ms": 2000,
        "previous_producer_id": 7,
        "next_producer_id": NO_PRODUCER_ID,
        "client_version": V1,
    }


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_decision_of_the_second_protocol_raises_the_epoch(is_commit: bool) -> None:
    after = transitions.prepared_v2(ONGOING, is_commit=is_commit, next_producer_id=NO_PRODUCER_ID, now_ms=2000)
    assert changes(ONGOING, after) == {
        "state": TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT,
        "producer_epoch": 4,
        "last_producer_epoch": 3,
        "last_update_ms": 2000,
        "previous_producer_id": 7,
        "client_version": 2,
    }


def test_a_transaction_that_never_began_starts_when_it_is_decided() -> None:
    after = transitions.prepared_v2(EMPTY, is_commit=False, next_producer_id=9, now_ms=2000)
    assert (after.start_ms, after.next_producer_id) == (2000, 9)


@pytest.mark.parametrize(("epoch", "raised"), [(3, 4), (PRODUCER_EPOCH_MAX - 1, PRODUCER_EPOCH_MAX), (32767, 32767)])
def test_the_epoch_that_fences_a_producer_has_a_limit(epoch: int, raised: int) -> None:
    assert PRODUCER_EPOCH_MAX == 32767
    before = ONGOING._replace(producer_epoch=epoch, client_version=V2)
    second = transitions.prepared_v2(before, is_commit=True, next_producer_id=8, now_ms=2000)
    assert (second.producer_epoch, second.last_producer_epoch) == (raised, epoch)
    first = transitions.fenced_v1(before, last_epoch=1, now_ms=2000)
    assert (first.producer_epoch, first.last_producer_epoch) == (raised, 1)
    assert (first.state, first.client_version) == (TransactionState.PREPARE_ABORT, V1)


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_complete_transaction_has_no_partitions(is_commit: bool) -> None:
    prepared = transitions.prepared_v1(ONGOING, is_commit=is_commit, now_ms=2000)
    assert changes(prepared, transitions.completed(prepared, 3000)) == {
        "state": TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT,
        "last_update_ms": 3000,
        "partitions": frozenset(),
    }


def test_the_next_producer_id_is_the_producers_once_the_transaction_is_complete() -> None:
    prepared = transitions.prepared_v2(ONGOING, is_commit=True, next_producer_id=8, now_ms=2000)
    assert transitions.producer_to_go_on(prepared) == (8, 0)
    complete = transitions.completed(prepared, 3000)
    assert (complete.producer_id, complete.producer_epoch) == (8, 0)
    assert (complete.previous_producer_id, complete.next_producer_id) == (7, NO_PRODUCER_ID)
    assert transitions.producer_to_go_on(complete) == (8, 0)
    assert transitions.producer_to_go_on(ONGOING) == (7, 3)


def test_an_epoch_is_exhausted_from_the_last_one_that_clients_get_on() -> None:
    exhausted = [
        epoch for epoch in (0, 32765, 32766, 32767) if ONGOING._replace(producer_epoch=epoch).is_epoch_exhausted
    ]
    assert exhausted == [32766, 32767]
    assert LAST_CLIENT_EPOCH == 32766


@pytest.mark.parametrize(
    ("producer", "code"),
    [
        ((7, 3), ErrorCode.NONE),
        ((7, 2), ErrorCode.PRODUCER_FENCED),
        ((7, 4), ErrorCode.PRODUCER_FENCED),
        ((6, 3), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ((6, LAST_CLIENT_EPOCH), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_a_request_is_its_producers_alone(producer: tuple[int, int], code: ErrorCode) -> None:
    assert ONGOING.check_producer(*producer) is code


@pytest.mark.parametrize(
    ("producer", "expected"),
    [((6, LAST_CLIENT_EPOCH), True), ((6, LAST_CLIENT_EPOCH - 1), False), ((5, LAST_CLIENT_EPOCH), False)],
)
def test_an_exhausted_id_that_was_replaced_is_known(producer: tuple[int, int], expected: bool) -> None:
    replaced = EMPTY._replace(producer_epoch=0)
    assert replaced.has_rolled_over_from(*producer) is expected
    assert not replaced._replace(producer_epoch=1).has_rolled_over_from(*producer)
    assert not replaced._replace(producer_id=6).has_rolled_over_from(*producer)
    assert (replaced.check_producer(*producer) is ErrorCode.PRODUCER_FENCED) is expected
