from random import Random

import pytest

from flowstone.broker.fetch_sessions import EVICTION_AGE_S, FetchSessions
from flowstone.errors import ApiError, ErrorCode
from flowstone.ports.clock import SimulatedClock
from flowstone.wire.messages import (
    FetchRequest,
    FetchRequestForgottenTopic,
    FetchRequestPartition,
    FetchRequestTopic,
)


def request(
    session_id: int, epoch: int, *partitions: int, offset: int = 0, forget: tuple[int, ...] = ()
) -> FetchRequest:
    topics = [
        FetchRequestTopic(
            topic="t", partitions=[FetchRequestPartition(partition=each, fetch_offset=offset) for each in partitions]
        )
    ]
    return FetchRequest(
        session_id=session_id,
        session_epoch=epoch,
        topics=topics if partitions else [],
        forgotten_topics_data=[FetchRequestForgottenTopic(topic="t", partitions=forget)] if forget else [],
    )


def sessions(slots: int = 2) -> tuple[FetchSessions, SimulatedClock]:
    clock = SimulatedClock()
    return FetchSessions(clock, slots, Random(1)), clock


def partitions_of(session) -> list[tuple[int, int]]:
    return [(each.index, each.fetch_offset) for each in session.partitions]


def test_without_a_session_every_request_stands_alone():
    cache, _ = sessions()
    session = cache.open(request(0, -1, 0, 1), False)
    assert session.session_id == 0
    assert not session.is_incremental
    assert partitions_of(session) == [(0, 0), (1, 0)]
    assert len(cache) == 0


def test_an_incremental_request_changes_only_what_it_names():
    cache, _ = sessions()
    opened = cache.open(request(0, 0, 0, 1, 2), False)
    assert opened.session_id > 0
    session = cache.open(request(opened.session_id, 1, 1, offset=7, forget=(2,)), False)
    assert session is opened
    assert session.is_incremental
    assert partitions_of(session) == [(0, 0), (1, 7)]


def test_an_empty_incremental_request_is_legal():
    cache, _ = sessions()
    opened = cache.open(request(0, 0, 0), False)
    assert partitions_of(cache.open(request(opened.session_id, 1), False)) == [(0, 0)]


def test_an_unknown_session_and_a_wrong_epoch_are_told_apart():
    cache, _ = sessions()
    opened = cache.open(request(0, 0, 0), False)
    with pytest.raises(ApiError) as unknown:
        cache.open(request(opened.session_id + 1, 1), False)
    assert unknown.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    with pytest.raises(ApiError) as wrong:
        cache.open(request(opened.session_id, 5), False)
    assert wrong.value.code is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert cache.open(request(opened.session_id, 1), False) is opened


def test_the_final_epoch_closes_the_session():
    cache, _ = sessions()
    opened = cache.open(request(0, 0, 0), False)
    closed = cache.open(request(opened.session_id, -1, 0), False)
    assert closed.session_id == 0
    assert len(cache) == 0


def test_when_all_slots_are_in_use_a_new_client_fetches_without_a_session():
    cache, clock = sessions(slots=2)
    first = cache.open(request(0, 0, 0), False)
    cache.open(request(0, 0, 0), False)
    assert cache.open(request(0, 0, 0), False).session_id == 0
    clock.advance(EVICTION_AGE_S + 1)
    cache.open(request(first.session_id, 1), False)
    newcomer = cache.open(request(0, 0, 0), False)
    assert newcomer.session_id != 0
    assert len(cache) == 2
    assert cache.open(request(first.session_id, 2), False) is first


def test_whoever_was_served_comes_last_next_time():
    cache, _ = sessions()
    session = cache.open(request(0, 0, 0, 1, 2), False)
    session.move_last(next(iter(session.partitions)))
    assert [index for index, _ in partitions_of(session)] == [1, 2, 0]


def test_a_session_opened_with_names_is_not_continued_with_ids():
    cache, _ = sessions()
    opened = cache.open(request(0, 0, 0), True)
    with pytest.raises(ApiError) as mixed:
        cache.open(request(opened.session_id, 1, 0), True)
    assert mixed.value.code is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert cache.open(request(opened.session_id, 1), True) is opened
