"""Every error of ShareFetch and ShareAcknowledge, provoked over a socket."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowstone.coordinator.share.messages import InitialState
from flowstone.coordinator.share.records import ShareKey
from flowstone.errors import ErrorCode
from flowstone.wire import messages as m
from tests.support.running_app import RunningApp
from tests.support.sharing.share_client import ACCEPT, RELEASE, RENEW, Sharer, begin, topic_id_of
from tests.support.wire_client import batch_of

TOPIC = "t"
INVALID_REQUEST, INVALID_STATE = ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_RECORD_STATE


@pytest.fixture
def app(tmp_path: Path) -> Iterator[RunningApp]:
    settings = {
        "group_share_max_share_sessions": "2",
        "group_share_record_lock_duration_ms": "1000",
        "group_share_min_record_lock_duration_ms": "1000",
    }
    with RunningApp(str(tmp_path), **settings) as app:
        yield app


@pytest.fixture
def member(app: RunningApp) -> Iterator[Sharer]:
    with app.client() as client:
        client.create_topic(TOPIC)
        topic_id = topic_id_of(client, TOPIC)
        begin(client, topic_id, start_offset=0)
        client.produce(TOPIC, batch_of(*(b"%d" % each for each in range(10))))
        yield Sharer(client, topic_id)


def another(app: RunningApp, member: Sharer, name: str) -> Sharer:
    return Sharer(app.client(), member.topic_id, name)


def ack_error(response: Any) -> int:
    assert response.error_code == 0
    ((partition,),) = (topic.partitions for topic in response.responses)
    return int(getattr(partition, "acknowledge_error_code", 0) or partition.error_code)


def test_sessions_have_epochs(member: Sharer) -> None:
    assert member.acknowledge((0, 0, ACCEPT)).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    member.epoch = 3
    assert member.fetch().error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert member.acknowledge((0, 0, ACCEPT)).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    member.epoch = -1
    assert member.fetch().error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert member.acknowledge((0, 0, ACCEPT)).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    member.epoch = 0
    assert member.fetch((0, 0, ACCEPT)).error_code == INVALID_REQUEST
    assert len(member.take()) == 10
    member.epoch += 1
    assert member.fetch().error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.acknowledge((0, 0, ACCEPT)).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH


def test_there_are_only_so_many_sessions(app: RunningApp, member: Sharer) -> None:
    second, third = another(app, member, "second"), another(app, member, "third")
    assert [each.fetch(wait_ms=0).error_code for each in (member, second, third)] == [
        0,
        0,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    ]
    second.epoch = -1
    assert second.fetch(wait_ms=0).error_code == 0
    assert third.fetch(wait_ms=0).error_code == 0
    for each in (second, third):
        each.client.close()


def test_a_member_has_a_group_and_a_name(member: Sharer) -> None:
    member.group = ""
    assert member.fetch().error_code == INVALID_REQUEST
    member.group, member.member = "g", "m" * 37
    assert member.fetch().error_code == INVALID_REQUEST


@pytest.mark.parametrize(
    ("acks", "code"),
    [
        ([(5, 4, ACCEPT)], INVALID_REQUEST),
        ([(-1, 4, ACCEPT)], INVALID_REQUEST),
        ([(0, 4, ACCEPT), (4, 6, ACCEPT)], INVALID_REQUEST),
        ([(5, 6, ACCEPT), (0, 1, ACCEPT)], INVALID_REQUEST),
        ([(0, 4, (1, 1))], INVALID_REQUEST),
        ([(0, 4, ())], INVALID_REQUEST),
        ([(0, 4, 5)], INVALID_REQUEST),
        ([(0, 4, RENEW)], INVALID_REQUEST),
        ([(9, 10, ACCEPT)], INVALID_REQUEST),
        ([(0, 9, ACCEPT)], ErrorCode.NONE),
        ([(0, 9, (1, 2, 3, 0, 1, 2, 3, 0, 1, 2))], ErrorCode.NONE),
    ],
)
def test_malformed_acknowledgements_are_refused_and_change_nothing(member: Sharer, acks: Any, code: int) -> None:
    assert len(member.take()) == 10
    assert ack_error(member.acknowledge(*acks)) == code
    if code:
        member.accept((0, 9))


def test_records_of_others_and_completed_ones_cannot_be_acknowledged(app: RunningApp, member: Sharer) -> None:
    assert len(member.take()) == 10
    other = another(app, member, "other")
    assert other.take(wait_ms=0) == []
    assert ack_error(other.acknowledge((0, 0, ACCEPT))) == INVALID_STATE
    member.accept((5, 6))
    assert ack_error(member.acknowledge((0, 5, ACCEPT))) == INVALID_STATE
    member.accept((0, 1))
    member.accept((0, 1))  # below the start offset: silently fine
    assert ack_error(member.fetch((5, 5, ACCEPT), wait_ms=0)) == INVALID_STATE
    other.client.close()


def test_an_expired_lock_releases_the_records_for_others(app: RunningApp, member: Sharer) -> None:
    assert len(member.take()) == 10
    other = another(app, member, "other")
    started = time.monotonic()
    assert [each.delivery_count for each in other.take(wait_ms=8000, max_records=1)][:1] == [2]
    assert 0.5 < time.monotonic() - started < 4
    assert ack_error(member.acknowledge((0, 0, ACCEPT))) == INVALID_STATE
    other.client.close()


def test_a_renewed_lock_lasts_longer(app: RunningApp, member: Sharer) -> None:
    assert len(member.take()) == 10
    other = another(app, member, "other")
    assert other.take(wait_ms=0) == []
    for _ in range(4):
        time.sleep(0.4)
        assert ack_error(member.acknowledge((0, 9, RENEW), is_renew_ack=True)) == 0
    assert other.take(wait_ms=0) == []
    assert member.fetch((0, 9, RENEW), is_renew_ack=True).error_code == INVALID_REQUEST
    limits = {"wait_ms": 0, "max_records": 0, "max_bytes": 0}
    assert ack_error(member.fetch((0, 9, RENEW), is_renew_ack=True, **limits)) == 0
    member.accept((0, 9))
    other.client.close()


def test_a_record_is_delivered_five_times_and_its_neighbours_survive(member: Sharer) -> None:
    counts: dict[int, int] = {}
    accepted: set[int] = set()
    for _ in range(60):
        got = member.take(wait_ms=300)
        for each in got:
            counts[each.offset] = each.delivery_count
        if not got:
            break
        bad = [(each.offset, each.offset, RELEASE) for each in got if each.offset == 3]
        # One consumer that fails on record 3 fails on all that came with it.
        acks = [(each.offset, each.offset, RELEASE if bad else ACCEPT) for each in got]
        assert ack_error(member.acknowledge(*acks)) == 0
        accepted |= {first for first, _, kind in acks if kind == ACCEPT}
    assert counts[3] == 5
    assert max(counts.values()) == 5
    assert accepted == set(range(10)) - {3}


def test_a_partition_that_is_not_here_has_an_error_of_its_own(member: Sharer) -> None:
    (topic,) = member.fetch(partition=7).responses
    assert topic.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (topic.partitions[0].current_leader.leader_id, topic.partitions[0].current_leader.leader_epoch) == (-1, -1)
    member.topic_id = bytes(15) + b"x"
    assert member.fetch(wait_ms=0).responses[-1].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_group_whose_state_was_not_initialized_is_told_so(app: RunningApp, member: Sharer) -> None:
    stranger = Sharer(member.client, member.topic_id, group="other")
    (topic,) = stranger.fetch(wait_ms=5000).responses
    assert topic.partitions[0].error_code == INVALID_REQUEST


def test_closing_a_session_acknowledges_and_releases(app: RunningApp, member: Sharer) -> None:
    assert len(member.take()) == 10
    member.epoch = -1
    assert ack_error(member.acknowledge((0, 4, ACCEPT))) == 0
    other = another(app, member, "other")
    assert [each.offset for each in other.take(wait_ms=5000)] == [5, 6, 7, 8, 9]
    other.client.close()


def test_a_start_that_was_altered_while_nobody_fetched_holds_for_the_next_member(
    app: RunningApp, member: Sharer
) -> None:
    assert len(member.take()) == 10
    member.accept((0, 9))
    member.epoch = -1
    assert member.fetch(wait_ms=0).error_code == 0
    states = app.app.services.share_states
    key = ShareKey("g", member.topic_id, 0)
    assert app.run(states.initialize([InitialState(key, 1, 7)]))[key].error_code == 0
    member.epoch = 0
    assert [each.offset for each in member.take()] == [7, 8, 9]


def test_records_of_a_forgotten_partition_can_still_be_acknowledged(member: Sharer) -> None:
    assert len(member.take()) == 10
    forgotten = [m.ShareFetchRequestForgottenTopic(topic_id=member.topic_id, partitions=[0])]
    assert member.fetch(wait_ms=0, forgotten=forgotten).responses == []
    member.accept((0, 9))


def test_a_forgotten_partition_is_not_fetched(
    app: RunningApp,
    member: Sharer,
) -> None:
    forgotten = [m.ShareFetchRequestForgottenTopic(topic_id=member.topic_id, partitions=[0])]
    assert member.fetch(wait_ms=0, forgotten=forgotten).responses == []


def test_the_number_of_records_is_exact_in_record_limit_mode(member: Sharer) -> None:
    assert [each.offset for each in member.take(max_records=3, share_acquire_mode=1)] == [0, 1, 2]
    assert [each.offset for each in member.take(max_records=4, share_acquire_mode=1)] == [3, 4, 5, 6]
    assert len(member.take(max_records=1)) == 3  # whole batches
