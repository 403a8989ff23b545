"""The limits of a partition's producer table: the last moment before each of them, and the first one after it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flowstone.errors import ApiError, ErrorCode
from flowstone.log.partition.producers.producer_sequences import SEQUENCE_MAX, SequenceGap
from flowstone.log.partition.producers.producer_state import GAP_AFTER_REFUSAL_MS, PRODUCER_IDLE_MS, ProducerStates
from flowstone.wire.end_markers import EndMarker, end_marker
from flowstone.wire.record_batch import CONTROL_FLAG, NO_SEQUENCE, TRANSACTIONAL_FLAG, BatchHeader, parse_header

PRODUCER = 9
NOW_MS = 2_000
BEHIND_MAX = SEQUENCE_MAX // 2  # how far back a sequence is taken for an old one


def header(
    first: int, count: int = 1, *, epoch: int = 0, producer_id: int = PRODUCER, attributes: int = 0
) -> BatchHeader:
    return BatchHeader(0, 49, 0, 2, 0, attributes, count - 1, 0, 77, producer_id, epoch, first, count)


def transactional(first: int, **more: int) -> BatchHeader:
    return header(first, **more)._replace(attributes=TRANSACTIONAL_FLAG)


def marker(epoch: int = 0, producer_id: int = PRODUCER) -> BatchHeader:
    return header(NO_SEQUENCE, epoch=epoch, producer_id=producer_id, attributes=TRANSACTIONAL_FLAG | CONTROL_FLAG)


COMMIT = EndMarker(True, 5)


def written(*batches: BatchHeader) -> ProducerStates:
    """Batches at offsets 100, 101, ..., a millisecond apart."""
    made = ProducerStates()
    for number, batch in enumerate(batches):
        made.apply(batch, 100 + number, 1000 + number, COMMIT if batch.attributes & CONTROL_FLAG else None)
    return made


def refusal(states: ProducerStates, batch: BatchHeader, now_ms: int = NOW_MS, version: int = 0) -> type[ApiError]:
    with pytest.raises(ApiError) as error:
        states.check(batch, now_ms, version)
    return type(error.value)


@pytest.fixture
def two_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowstone.log.partition.producers.producer_state.PRODUCERS_MAX", 2)


@pytest.mark.parametrize("batch", [header, transactional])
def test_zero_follows_the_largest_sequence(batch: Callable[[int], BatchHeader]) -> None:
    made = written(batch(SEQUENCE_MAX))
    assert made.check(batch(0), NOW_MS) is None
    assert refusal(made, batch(1)) is SequenceGap
    before_last = written(batch(SEQUENCE_MAX - 1))
    assert before_last.check(batch(SEQUENCE_MAX), NOW_MS) is None
    assert refusal(before_last, batch(0)) is SequenceGap


@pytest.mark.parametrize("batch", [header, transactional])
def test_the_batch_before_the_next_one_is_a_repeat(batch: Callable[[int], BatchHeader]) -> None:
    made = written(batch(0), batch(1), batch(2))
    repeated = made.check(batch(1), NOW_MS)
    assert repeated is not None
    assert repeated.base_offset == 101
    assert made.check(batch(3), NOW_MS) is None


def test_half_of_all_sequences_are_ahead_of_the_next() -> None:
    made = written(header(0))
    assert refusal(made, header(1 + BEHIND_MAX)) is SequenceGap
    assert refusal(made, header(2 + BEHIND_MAX)) is ApiError


@pytest.mark.parametrize(("sequence", "expected"), [(BEHIND_MAX, SequenceGap), (BEHIND_MAX + 1, ApiError)])
def test_ahead_is_counted_from_zero_where_nothing_is_known(sequence: int, expected: type[ApiError]) -> None:
    assert refusal(ProducerStates(), transactional(sequence), version=2) is expected
    assert refusal(written(header(3)), header(sequence, epoch=1)) is expected
    assert refusal(written(marker(epoch=1)), header(sequence, epoch=1)) is expected


@pytest.mark.parametrize("behind", [1, BEHIND_MAX])
def test_a_batch_that_a_snapshot_left_out_may_be_far_behind(behind: int) -> None:
    loaded = ProducerStates.decode_snapshot(written(header(BEHIND_MAX + 5)).encode_snapshot())
    assert loaded is not None
    repeated = loaded.check(header(BEHIND_MAX + 5 - behind), NOW_MS)
    assert repeated is not None
    assert (repeated.is_place_known, repeated.last_offset, repeated.offset_delta) == (False, 99, 0)
    with pytest.raises(ApiError):
        loaded.check(header(4 - 1), NOW_MS)
    with pytest.raises(ApiError):  # of the same last sequence, but with another first one
        loaded.check(header(BEHIND_MAX + 4, 2), NOW_MS)


def test_a_snapshot_says_nothing_of_batches_of_a_later_epoch() -> None:
    loaded = ProducerStates.decode_snapshot(written(header(5)).encode_snapshot())
    assert loaded is not None
    loaded.apply(header(0, epoch=1), 101, 1001)
    loaded.apply(header(1, epoch=1), 102, 1002)
    with pytest.raises(ApiError):
        loaded.check(header(SEQUENCE_MAX, epoch=1), NOW_MS)


def test_an_older_epoch_is_fenced_and_the_same_is_not() -> None:
    made = written(header(0, epoch=3))
    assert made.check(header(1, epoch=3), NOW_MS) is None
    with pytest.raises(ApiError) as error:
        made.check(header(0, epoch=2), NOW_MS)
    assert error.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.usefixtures("two_at_most")
def test_a_producer_is_idle_from_the_last_millisecond_on() -> None:
    made = written(header(0, producer_id=1), header(0, producer_id=2))
    with pytest.raises(ApiError):
        made.check(header(0), 1000 + PRODUCER_IDLE_MS - 1)
    assert made.check(header(0), 1000 + PRODUCER_IDLE_MS) is None


@pytest.mark.usefixtures("two_at_most")
def test_later_batches_of_new_producers_are_refused_for_a_while_after_a_refusal() -> None:
    made = written(header(0, producer_id=1), header(0, producer_id=2))
    refused_ms = 1000 + PRODUCER_IDLE_MS - 1
    with pytest.raises(ApiError):
        made.check(header(0), refused_ms)
    made.expire(refused_ms, 0)
    for later_ms in (0, 1, GAP_AFTER_REFUSAL_MS - 1):
        with pytest.raises(ApiError):
            made.check(header(1), refused_ms + later_ms)
        assert made.check(header(0), refused_ms + later_ms) is None
    assert made.check(header(1), refused_ms + GAP_AFTER_REFUSAL_MS) is None
    assert made.check(header(1), refused_ms - 1) is None  # the clock was set back


@pytest.mark.usefixtures("two_at_most")
def test_a_producer_that_begins_an_epoch_is_not_the_next_to_be_forgotten() -> None:
    made = written(header(0, producer_id=1), header(0, producer_id=2), header(0, producer_id=1, epoch=1))
    made.apply(header(0, producer_id=3), 110, 1010)
    assert [made.get(each) is not None for each in (1, 2, 3)] == [True, False, True]


@pytest.mark.usefixtures("two_at_most")
def test_the_last_producer_without_a_transaction_is_kept_and_the_one_before_it_is_not() -> None:
    made = written(transactional(0, producer_id=1), transactional(0, producer_id=2), header(0, producer_id=3))
    assert made.get(3) is not None
    made.apply(header(0, producer_id=4), 110, 1010)
    assert [made.get(each) is not None for each in (1, 2, 3, 4)] == [True, True, False, True]


def test_a_producer_expires_in_the_millisecond_of_the_limit() -> None:
    made = written(header(0))
    made.expire(1099, 100)
    assert len(made) == 1
    made.expire(1100, 100)
    assert len(made) == 0


def test_a_transaction_is_open_for_its_producer_and_epoch_alone() -> None:
    made = written(header(0, producer_id=1), transactional(0, epoch=3))
    assert made.has_open_transaction(PRODUCER, 3)
    assert not made.has_open_transaction(PRODUCER, 2)
    assert not made.has_open_transaction(1, 0)
    assert not made.has_open_transaction(77, 3)
    assert [tuple(each) for each in made.open_transactions()] == [(PRODUCER, 3, 101)]
    made.apply(marker(epoch=3), 102, 1002, COMMIT)
    assert made.open_transactions() == []
    assert ProducerStates().open_transactions() == []


def test_a_log_is_transactional_from_its_first_transaction_or_marker_on() -> None:
    assert not written(header(0)).has_transactions
    assert written(transactional(0)).has_transactions
    made = written(marker())
    assert made.has_transactions
    for states, expected in ((made, True), (written(header(0)), False)):
        loaded = ProducerStates.decode_snapshot(states.encode_snapshot())
        assert loaded is not None
        assert loaded.has_transactions is expected
    made.clear()
    assert not made.has_transactions


def test_a_snapshot_keeps_a_transaction_and_a_batch_at_offset_zero() -> None:
    made = ProducerStates()
    made.apply(transactional(0), 0, 1000)
    loaded = ProducerStates.decode_snapshot(made.encode_snapshot())
    assert loaded is not None
    assert loaded.last_offsets() == (0,)
    assert loaded.has_open_transaction(PRODUCER, 0)


def test_clearing_forgets_every_producer_and_transaction() -> None:
    made = written(header(0, producer_id=1), transactional(0))
    made.clear()
    assert (len(made), made.undecided, made.open_transactions()) == (0, None, [])


def test_forgetting_sequences_keeps_open_transactions() -> None:
    made = written(header(4, producer_id=1), transactional(4))
    made.forget_sequences()
    assert made.get(1) is None
    assert made.has_open_transaction(PRODUCER, 0)
    assert made.check(transactional(0), NOW_MS) is None
    made.apply(transactional(0), 102, 1002)
    made.apply(transactional(1), 103, 1003)
    with pytest.raises(ApiError):  # nothing is remembered of what may have come before
        made.check(transactional(SEQUENCE_MAX), NOW_MS)


def test_what_rebuilds_the_states_is_the_last_batch_of_each_producer_and_the_markers() -> None:
    made = written(header(0, 3), header(3, 4), header(0, producer_id=4), marker(epoch=7, producer_id=6))
    assert made.last_offsets() == (102, 104)
    assert made.known_by_markers() == ((6, 7),)


def test_a_listener_hears_of_the_markers_of_its_producer_alone() -> None:
    heard: list[int] = []
    made = ProducerStates()
    made.on_marker[PRODUCER] = heard.append
    made.apply(marker(epoch=3), 100, 1000, COMMIT)
    made.apply(marker(epoch=4, producer_id=1), 101, 1001, COMMIT)
    assert heard == [3]


def test_the_brokers_own_marker_is_read_and_checked() -> None:
    batch = end_marker(PRODUCER, 3, 5, True, 1000)
    made = written(header(0, epoch=3))
    assert made.check_own(batch, parse_header(batch), 1) == EndMarker(True, 5)
    made.apply(marker(epoch=4), 101, 1001, COMMIT)
    with pytest.raises(ApiError) as error:
        made.check_own(batch, parse_header(batch), 1)
    assert error.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
