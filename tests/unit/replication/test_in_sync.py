"""What a leader knows of its followers: who is caught up, what is committed, which change of the ISR is due."""

from __future__ import annotations

import pytest

from flowstone.cluster.image.cluster_image import PartitionImage
from flowstone.errors import ApiError, ErrorCode
from flowstone.replication.in_sync import JOIN_WAIT_S, Follower, InSyncReplicas
from flowstone.replication.state import NO_OFFSET, UNKNOWN_BROKER_EPOCH, IsrMember

BROKER_EPOCH = 7


def fetched(*fetches: tuple[int, int, float]) -> Follower:
    """A follower that leads back to second 10, and has fetched: its position, the leader's end, the time."""
    made = Follower(10.0)
    for position, end_offset, now_s in fetches:
        made.fetched(BROKER_EPOCH, position, end_offset, now_s)
    return made


@pytest.mark.parametrize(
    ("fetches", "caught_up_s"),
    [
        ([], 10.0),
        ([(5, 5, 20.0)], 20.0),
        ([(6, 5, 20.0)], 20.0),
        ([(4, 5, 20.0)], 10.0),
        ([(4, 5, 20.0), (5, 9, 30.0)], 20.0),
        ([(4, 5, 20.0), (4, 9, 30.0)], 10.0),
        ([(4, 5, 20.0), (6, 9, 30.0), (9, 12, 40.0)], 30.0),
        ([(4, 5, 5.0), (5, 9, 30.0)], 10.0),
        ([(5, 5, 20.0), (5, 9, 30.0), (8, 12, 40.0)], 20.0),
    ],
)
def test_a_follower_has_caught_up_when_it_has_what_the_leader_had_at_its_last_fetch(
    fetches: list[tuple[int, int, float]], caught_up_s: float
) -> None:
    assert fetched(*fetches).caught_up_s == caught_up_s


def test_a_fetch_tells_who_the_follower_is_and_where() -> None:
    made = fetched((4, 5, 20.0))
    assert (made.broker_epoch, made.position, made.is_awaited) == (BROKER_EPOCH, 4, True)
    made.is_awaited = False
    made.fetched(BROKER_EPOCH + 1, 5, 5, 30.0)
    assert (made.broker_epoch, made.position, made.is_awaited) == (BROKER_EPOCH + 1, 5, True)


@pytest.mark.parametrize(
    ("position", "end_offset", "now_s", "lags"),
    [(5, 5, 99.0, False), (6, 5, 99.0, False), (4, 5, 20.0, False), (4, 5, 20.5, True), (4, 5, 11.0, False)],
)
def test_a_follower_lags_when_it_has_not_caught_up_for_longer_than_the_limit(
    position: int, end_offset: int, now_s: float, lags: bool
) -> None:
    made = fetched((position, position + 1, 10.0))
    assert made.lags(end_offset, 10.0, now_s) is lags


def test_a_follower_that_never_fetched_lags_once_its_time_is_over() -> None:
    assert not Follower(10.0).lags(0, 10.0, 20.0)
    assert Follower(10.0).lags(0, 10.0, 20.1)


def test_a_follower_at_the_leaders_end_stays_caught_up_while_nothing_is_new() -> None:
    made = fetched((5, 6, 10.0))
    made.note_leader_end(6, 20.0)
    assert made.caught_up_s == 10.0
    made.note_leader_end(5, 20.0)
    assert made.caught_up_s == 20.0
    made.note_leader_end(4, 30.0)
    assert made.caught_up_s == 30.0
    waiting = Follower(10.0)
    waiting.note_leader_end(0, 20.0)
    assert waiting.caught_up_s == 10.0


# The leader's view of all of them

LEADER = 1
LAG_S = 30.0
EPOCH_START = 4  # where the leader's epoch begins in its log


def a_state(*isr: int, replicas: tuple[int, ...] = (1, 2, 3)) -> PartitionImage:
    return PartitionImage(LEADER, 3, 0, replicas, isr)


def leading(*isr: int, replicas: tuple[int, ...] = (1, 2, 3), now_s: float = 0.0) -> InSyncReplicas:
    return InSyncReplicas(LEADER, a_state(*isr, replicas=replicas), EPOCH_START, LAG_S, now_s)


def fetch(in_sync: InSyncReplicas, node_id: int, position: int, end: int, now_s: float = 0.0) -> None:
    in_sync.fetched(node_id, BROKER_EPOCH, position, end, now_s)


# What is committed


def test_the_lowest_position_of_the_isr_is_committed() -> None:
    in_sync = leading(1, 2, 3)
    fetch(in_sync, 2, 8, 10)
    fetch(in_sync, 3, 6, 10)
    assert in_sync.high_watermark(10, 1, 0.0) == 6
    assert in_sync.high_watermark(5, 1, 0.0) == 5


def test_nothing_is_committed_before_every_member_has_fetched_in_this_epoch() -> None:
    in_sync = leading(1, 2, 3)
    fetch(in_sync, 2, 8, 10)
    assert in_sync.high_watermark(10, 1, 0.0) is None
    fetch(in_sync, 3, 0, 10)
    assert in_sync.high_watermark(10, 1, 0.0) == 0


@pytest.mark.parametrize(("min_insync", "committed"), [(1, 10), (2, 10), (3, None), (9, None)])
def test_nothing_is_committed_while_the_isr_is_smaller_than_the_minimum(min_insync: int, committed: int | None) -> None:
    in_sync = leading(1, 2)
    fetch(in_sync, 2, 10, 10)
    assert in_sync.high_watermark(10, min_insync, 0.0) == committed


def test_a_minimum_above_the_number_of_replicas_means_all_of_them() -> None:
    in_sync = leading(1, 2, replicas=(1, 2))
    fetch(in_sync, 2, 10, 10)
    assert in_sync.high_watermark(10, 3, 0.0) == 10


def test_a_member_that_is_proposed_counts_as_one_that_is_decided() -> None:
    in_sync = leading(1, 2)
    fetch(in_sync, 2, 10, 10)
    fetch(in_sync, 3, 6, 10)
    in_sync.propose((IsrMember(1, 0), IsrMember(3, BROKER_EPOCH)))
    assert in_sync.high_watermark(10, 1, 1e9) == 6
    in_sync.refused()
    assert in_sync.high_watermark(10, 1, 1e9) == 10


# Whom the high watermark waits for


def awaiting(*fetches: tuple[int, int, float]) -> InSyncReplicas:
    """The leader alone is in sync, and its log ends at 10; others fetch at a position and a time."""
    in_sync = leading(1, replicas=(1, 2, 3))
    for node_id, position, now_s in fetches:
        fetch(in_sync, node_id, position, position, now_s)
    return in_sync


def test_the_high_watermark_waits_for_a_caught_up_follower_for_a_limited_time() -> None:
    in_sync = awaiting((2, 8, 100.0))
    assert in_sync.high_watermark(10, 1, 100.0 + JOIN_WAIT_S - 0.01) == 8
    assert in_sync.held_until_s == 100.0 + JOIN_WAIT_S
    assert in_sync.high_watermark(10, 1, 100.0 + JOIN_WAIT_S) == 10
    assert in_sync.held_until_s is None


def test_the_high_watermark_waits_for_the_lowest_and_until_the_first_wait_is_over() -> None:
    in_sync = awaiting((2, 8, 100.3), (3, 6, 100.0))
    assert in_sync.high_watermark(10, 1, 100.5) == 6
    assert in_sync.held_until_s == 100.0 + JOIN_WAIT_S
    in_sync = awaiting((2, 6, 100.0), (3, 8, 100.3))
    assert in_sync.high_watermark(10, 1, 100.5) == 6
    assert in_sync.held_until_s == 100.0 + JOIN_WAIT_S


def test_a_follower_that_has_all_that_is_committed_is_not_waited_for() -> None:
    in_sync = awaiting((2, 10, 100.0), (3, 11, 100.0))
    assert in_sync.high_watermark(10, 1, 100.0) == 10
    assert in_sync.held_until_s is None


def test_a_follower_that_cannot_join_does_not_keep_the_leader_from_waiting_for_another() -> None:
    in_sync = awaiting((2, 10, 100.0), (3, 6, 100.0))
    assert in_sync.high_watermark(10, 1, 100.0) == 6
    in_sync = awaiting((2, 5, 10.0), (3, 6, 100.0))
    assert in_sync.high_watermark(10, 1, 100.0) == 6


def test_a_follower_that_the_cluster_would_refuse_is_not_waited_for() -> None:
    in_sync, asked = awaiting((2, 8, 100.0)), []

    def refuse(member: IsrMember) -> bool:
        asked.append(member)
        return False

    assert in_sync.high_watermark(10, 1, 100.0, refuse) == 10
    assert asked == [IsrMember(2, BROKER_EPOCH)]


def test_a_follower_that_was_refused_is_waited_for_when_it_fetches_anew_but_not_when_a_parked_fetch_is_read_again() -> (
    None
):
    in_sync = awaiting((2, 8, 100.0))
    in_sync.propose((IsrMember(1, UNKNOWN_BROKER_EPOCH), IsrMember(2, BROKER_EPOCH), IsrMember(9, BROKER_EPOCH)))
    in_sync.refused()
    assert in_sync.proposed is None
    in_sync.fetched(2, BROKER_EPOCH, 9, 9, 100.0, is_repeated=True)
    assert in_sync.high_watermark(10, 1, 100.0) == 10
    in_sync.fetched(2, BROKER_EPOCH, 9, 9, 100.0)
    assert in_sync.high_watermark(10, 1, 100.0) == 9


# Who may fetch


def test_a_broker_that_has_no_replica_is_told_to_retry() -> None:
    for stranger in (LEADER, 4):
        with pytest.raises(ApiError) as refused:
            leading(1, 2).check(stranger, BROKER_EPOCH)
        assert refused.value.code is ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize(
    ("broker_epoch", "is_taken"),
    [
        (UNKNOWN_BROKER_EPOCH, True),
        (0, False),
        (BROKER_EPOCH - 1, False),
        (BROKER_EPOCH, True),
        (BROKER_EPOCH + 1, True),
    ],
)
def test_a_fetch_of_an_earlier_life_of_a_broker_is_refused(broker_epoch: int, is_taken: bool) -> None:
    in_sync = leading(1, 2)
    fetch(in_sync, 2, 5, 5)
    if is_taken:
        in_sync.check(2, broker_epoch)
        return
    with pytest.raises(ApiError) as refused:
        in_sync.check(2, broker_epoch)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_the_log_starts_where_the_lowest_of_the_live_replicas_does() -> None:
    in_sync = leading(1, 2, 3)
    assert in_sync.low_watermark(10, {2, 3}) == NO_OFFSET
    in_sync.log_starts_at(2, 6)
    in_sync.log_starts_at(3, 4)
    assert in_sync.low_watermark(10, {2, 3}) == 4
    assert in_sync.low_watermark(10, {2}) == 6
    assert in_sync.low_watermark(3, {2, 3}) == 3
    assert in_sync.low_watermark(10, set()) == 10


# Changes of the ISR


def test_no_change_is_due_while_all_members_are_caught_up() -> None:
    in_sync = leading(1, 2, 3)
    fetch(in_sync, 2, 10, 10)
    fetch(in_sync, 3, 9, 10)
    assert in_sync.due_change(9, 10, LAG_S) is None


def test_a_member_that_lags_for_too_long_leaves() -> None:
    in_sync = leading(1, 2, 3)
    fetch(in_sync, 2, 10, 10)
    fetch(in_sync, 3, 9, 10)
    assert in_sync.due_change(9, 10, LAG_S + 0.1) == (IsrMember(1, UNKNOWN_BROKER_EPOCH), IsrMember(2, BROKER_EPOCH))


def test_members_that_never_fetched_have_the_whole_lag_time_from_the_start_of_the_epoch() -> None:
    in_sync = leading(1, 2, 3, now_s=100.0)
    assert in_sync.due_change(0, 10, 100.0 + LAG_S) is None
    assert in_sync.due_change(0, 10, 100.1 + LAG_S) == (IsrMember(1, UNKNOWN_BROKER_EPOCH),)


@pytest.mark.parametrize(
    ("position", "high_watermark", "joins"),
    [
        (EPOCH_START - 1, 0, False),
        (EPOCH_START, 0, True),
        (EPOCH_START, EPOCH_START + 1, False),
        (EPOCH_START + 1, EPOCH_START + 1, True),
        (EPOCH_START + 2, EPOCH_START + 1, True),
    ],
)
def test_a_follower_joins_once_it_has_what_is_committed_and_the_start_of_the_epoch(
    position: int, high_watermark: int, joins: bool
) -> None:
    in_sync = leading(1, 2)
    fetch(in_sync, 2, 20, 20)
    fetch(in_sync, 3, position, 20)
    joined = (IsrMember(1, UNKNOWN_BROKER_EPOCH), IsrMember(2, BROKER_EPOCH), IsrMember(3, BROKER_EPOCH))
    assert in_sync.due_change(high_watermark, 20, 0.0) == (joined if joins else None)


def test_a_follower_that_never_fetched_does_not_join() -> None:
    assert leading(1, replicas=(1, 2)).due_change(0, 0, 0.0) is None


def test_one_change_is_proposed_at_a_time() -> None:
    in_sync = leading(1, 2, 3)
    in_sync.propose((IsrMember(1, UNKNOWN_BROKER_EPOCH),))
    assert in_sync.due_change(0, 10, 10 * LAG_S) is None
    in_sync.refused()
    assert in_sync.due_change(0, 10, 10 * LAG_S) is not None


def test_a_follower_at_the_leaders_end_stays_caught_up_while_a_proposal_is_pending() -> None:
    in_sync = leading(1, 2)
    fetch(in_sync, 2, 10, 10, 0.0)
    in_sync.propose((IsrMember(1, UNKNOWN_BROKER_EPOCH), IsrMember(2, BROKER_EPOCH)))
    in_sync.due_change(10, 10, 100.0)
    in_sync.refused()
    assert in_sync.due_change(10, 11, 100.0 + LAG_S) is None
    assert in_sync.due_change(10, 11, 100.1 + LAG_S) == (IsrMember(1, UNKNOWN_BROKER_EPOCH),)


# Decisions of the cluster


def test_a_decision_ends_the_proposal_and_keeps_what_is_known_of_the_followers() -> None:
    in_sync = leading(1, 2)
    fetch(in_sync, 2, 10, 10)
    fetch(in_sync, 3, 10, 10)
    in_sync.propose((IsrMember(1, UNKNOWN_BROKER_EPOCH), IsrMember(2, BROKER_EPOCH), IsrMember(3, BROKER_EPOCH)))
    in_sync.decided(a_state(1, 2, 3), 0.0)
    assert (in_sync.isr, in_sync.proposed) == ((1, 2, 3), None)
    assert in_sync.high_watermark(10, 3, 0.0) == 10


def test_a_follower_that_the_cluster_removes_has_to_fetch_again_before_it_joins() -> None:
    in_sync = leading(1, 2, 3)
    fetch(in_sync, 2, 10, 10)
    fetch(in_sync, 3, 10, 10)
    in_sync.decided(a_state(1, 2), 0.0)
    assert in_sync.due_change(10, 10, 0.0) is None
    in_sync.fetched(3, BROKER_EPOCH, 10, 10, 0.0, is_repeated=True)
    assert in_sync.due_change(10, 10, 0.0) is None
    fetch(in_sync, 3, 10, 10)
    assert in_sync.due_change(10, 10, 0.0) is not None


def test_a_follower_that_the_leader_wanted_out_keeps_its_position() -> None:
    in_sync = leading(1, 2, 3)
    fetch(in_sync, 2, 10, 10)
    fetch(in_sync, 3, 10, 10)
    in_sync.propose((IsrMember(1, UNKNOWN_BROKER_EPOCH), IsrMember(2, BROKER_EPOCH)))
    in_sync.decided(a_state(1, 2), 0.0)
    assert in_sync.due_change(10, 10, 0.0) is not None


def test_a_replica_that_is_new_has_the_lag_time_only_as_a_member() -> None:
    in_sync = leading(1, 2)
    in_sync.decided(a_state(1, 2, 4, replicas=(1, 2, 3, 4)), 100.0)
    fetch(in_sync, 2, 10, 10, 100.0)
    assert in_sync.due_change(0, 10, 100.0 + LAG_S) is None
    in_sync.check(4, BROKER_EPOCH)
    fetch(in_sync, 3, 9, 10, 100.0)
    assert in_sync.high_watermark(10, 1, 100.0) is None  # broker 4 is a member and has not fetched
    fetch(in_sync, 4, 10, 10, 100.0)
    assert in_sync.high_watermark(10, 1, 100.0) == 10  # broker 3 was never caught up
