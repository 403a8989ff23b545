from random import Random

import pytest

from flowstone.broker.fetching import fetch_sessions
from flowstone.broker.fetching.fetch_sessions import CHECK_ALL_INTERVAL_S, EVICTION_AGE_S, FetchSession, FetchSessions
from flowstone.errors import ApiError, ErrorCode
from flowstone.ports.clock import SimulatedClock
from flowstone.replication.partition import Partition
from flowstone.replication.readers import Reader
from flowstone.wire.messages import (
    FetchRequest,
    FetchRequestForgottenTopic,
    FetchRequestPartition,
    FetchRequestTopic,
)
from tests.support.partitions import IN_PAGE_CACHE, a_batch, a_partition


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
    return [(each.index, each.fetch_offset) for each in session.partitions.values()]


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
    session.move_last(session.to_read()[0])
    assert cache.open(request(session.session_id, 1), False) is session
    assert [each.index for each in session.to_read()] == [1, 2, 0]


def watching_session() -> tuple[FetchSessions, SimulatedClock, FetchSession, list[Partition]]:
    """A session of three partitions, with nothing new in any of them."""
    cache, clock = sessions()
    clock.advance(CHECK_ALL_INTERVAL_S + 1)
    session = cache.open(request(0, 0, 0, 1, 2), False)
    partitions = [a_partition(IN_PAGE_CACHE)[0] for _ in range(3)]
    for wanted, partition in zip(session.to_read(), partitions, strict=True):
        wanted.watch(partition, session)
        session.settled(wanted)
    assert cache.open(request(session.session_id, 1), False).to_read() == []
    return cache, clock, session, partitions


class Bell:
    def __init__(self) -> None:
        self.heard: list[int | None] = []

    def advanced(self, size_bytes: int) -> None:
        self.heard.append(size_bytes)

    def interrupted(self) -> None:
        self.heard.append(None)


def test_only_partitions_with_something_new_are_read():
    _, _, session, partitions = watching_session()
    partitions[1].append(a_batch(), 1)
    assert [each.index for each in session.to_read()] == [1]


def test_a_partition_whose_offset_the_client_changes_is_read():
    cache, _, session, _ = watching_session()
    cache.open(request(session.session_id, 2, 2, offset=5), False)
    assert [each.index for each in session.to_read()] == [2]


def test_whoever_waits_for_a_session_hears_of_all_its_partitions():
    _, _, session, partitions = watching_session()
    bell = Bell()
    session.watch(bell)
    partitions[0].append(a_batch(), 1)
    partitions[2].close(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert bell.heard == [len(a_batch()), None]
    session.unwatch(bell)
    partitions[1].append(a_batch(), 1)
    assert len(bell.heard) == 2


def test_now_and_then_all_partitions_are_looked_at():
    cache, clock, session, _ = watching_session()
    clock.advance(CHECK_ALL_INTERVAL_S + 1)
    cache.open(request(session.session_id, 2), False)
    assert [each.index for each in session.to_read()] == [0, 1, 2]


def test_a_forgotten_partition_is_watched_no_more():
    cache, _, session, partitions = watching_session()
    cache.open(request(session.session_id, 2, forget=(1,)), False)
    partitions[1].append(a_batch(), 1)
    assert session.to_read() == []
    assert not partitions[1].local.watchers(Reader.UNCOMMITTED)


def test_a_session_that_is_dropped_lets_go_of_its_partitions_and_of_whoever_waits():
    cache, _, session, partitions = watching_session()
    bell = Bell()
    session.watch(bell)
    cache.open(request(session.session_id, -1), False)
    assert bell.heard == [None]
    assert not any(partition.local.watchers(Reader.UNCOMMITTED) for partition in partitions)


def test_a_session_opened_with_names_is_not_continued_with_ids():
    cache, _ = sessions()
    opened = cache.open(request(0, 0, 0), True)
    with pytest.raises(ApiError) as mixed:
        cache.open(request(opened.session_id, 1, 0), True)
    assert mixed.value.code is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert cache.open(request(opened.session_id, 1), True) is opened


def test_a_consumers_session_is_not_continued_by_a_follower():
    cache, _ = sessions()
    opened = cache.open(request(0, 0, 0), False)
    with pytest.raises(ApiError) as taken:
        cache.open(request(opened.session_id, 1), False, Reader.REPLICA)
    assert taken.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_follower_finds_space_where_consumers_have_taken_it_all():
    cache, _ = sessions(slots=2)
    first = cache.open(request(0, 0, 0), False)
    second = cache.open(request(0, 0, 0), False)
    assert cache.open(request(0, 0, 0), False, Reader.REPLICA).session_id != 0
    with pytest.raises(ApiError):
        cache.open(request(first.session_id, 1), False)
    assert cache.open(request(second.session_id, 1), False) is second


def test_a_follower_does_not_drive_out_another():
    cache, _ = sessions(slots=1)
    first = cache.open(request(0, 0, 0), False, Reader.REPLICA)
    assert cache.open(request(0, 0, 0), False, Reader.REPLICA).session_id == 0
    assert cache.open(request(first.session_id, 1), False, Reader.REPLICA) is first


def following_session() -> tuple[FetchSession, Partition, Bell]:
    """A follower's session of one partition, with nothing new, and somebody who waits for it."""
    cache, clock = sessions()
    clock.advance(CHECK_ALL_INTERVAL_S + 1)
    session = cache.open(request(0, 0, 0), False, Reader.REPLICA)
    partition, _ = a_partition(IN_PAGE_CACHE)
    for wanted in session.to_read():
        wanted.watch(partition, session)
        session.settled(wanted)
    assert cache.open(request(session.session_id, 1), False, Reader.REPLICA).to_read() == []
    bell = Bell()
    session.watch(bell)
    return session, partition, bell


def test_a_new_high_watermark_is_told_to_a_follower_with_the_next_answer_and_wakes_nobody():
    session, partition, bell = following_session()
    partition.append(a_batch(), 1)  # the only replica's: its high watermark moves, and no follower is told of its end
    assert len(session.to_read()) == 1
    assert bell.heard == []


def test_a_follower_hears_of_a_partition_that_is_no_longer_what_it_was():
    session, partition, bell = following_session()
    partition.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert len(session.to_read()) == 1
    assert bell.heard == [None]


def test_a_followers_session_that_is_dropped_lets_go_of_its_partitions():
    session, partition, _ = following_session()
    session.close()
    assert not partition.local.watchers(Reader.UNCOMMITTED)
    assert not partition.local.watchers(Reader.REPLICA)


def test_a_name_that_no_topic_can_have_is_not_remembered():
    cache, _ = sessions()
    wanted = [FetchRequestPartition(partition=0)]
    long_name = FetchRequestTopic(topic="x" * 250, partitions=wanted)
    assert cache.open(FetchRequest(session_epoch=0, topics=[long_name]), False).session_id == 0
    opened = cache.open(request(0, 0, 0), False)
    assert opened.session_id != 0
    with pytest.raises(ApiError) as refused:
        cache.open(FetchRequest(session_id=opened.session_id, session_epoch=1, topics=[long_name]), False)
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(cache) == 0


def test_a_session_that_grows_beyond_the_limit_is_gone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fetch_sessions, "SESSION_PARTITIONS_MAX", 3)
    cache, _ = sessions()
    session = cache.open(request(0, 0, 0, 1), False)
    for _ in range(2):
        with pytest.raises(ApiError) as refused:
            cache.open(request(session.session_id, 1, 2, 3), False)
        assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(cache) == 0


@pytest.mark.parametrize(("count", "has_more"), [(1, False), (2, False), (3, True)])
def test_a_response_serves_as_many_partitions_as_the_limit(
    count: int, has_more: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_sessions, "READ_PARTITIONS_MAX", 2)
    cache, _ = sessions()
    session = cache.open(request(0, 0, *range(count)), False)
    cache.open(request(session.session_id, 1), False)
    assert len(session.to_read()) == min(count, 2)
    assert session.has_more_to_read is has_more


def test_the_partitions_of_all_sessions_are_counted_as_sessions_change_and_end(monkeypatch: pytest.MonkeyPatch):
    cache, _ = sessions(slots=10)
    first = cache.open(request(0, 0, 0, 1), False)
    second = cache.open(request(0, 0, 0, 1, 2), False)
    assert cache._partition_count == 5
    cache.open(request(first.session_id, 1, 2, 3), False)
    assert cache._partition_count == 7
    cache.open(request(first.session_id, 2, forget=(0, 1, 2)), False)
    assert cache._partition_count == 4
    monkeypatch.setattr(fetch_sessions, "CACHED_PARTITIONS_MAX", 5)
    cache.open(request(second.session_id, 1, 3), False)
    assert cache._partition_count == 5
    with pytest.raises(ApiError) as refused:
        cache.open(request(second.session_id, 2, 4), False)
    assert refused.value.code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(cache), cache._partition_count) == (1, 1)
