"""When a follower counts as caught up, and when it lags: Kafka's rule, at its limits."""

from __future__ import annotations

import pytest

from flowstone.replication.in_sync import Follower

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
