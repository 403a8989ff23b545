"""How many records each of several members may get, by how fast they acknowledge."""

from __future__ import annotations

from flowstone.broker.sharing.fair_shares import FairShares

WINDOW, RECORDS = 2000, 500


def test_one_member_alone_gets_whole_batches() -> None:
    assert FairShares().limit("a", 1, WINDOW, RECORDS) is None


def test_members_whose_speed_is_unknown_share_the_window() -> None:
    assert FairShares().limit("a", 64, WINDOW, RECORDS) == 15
    assert FairShares().limit("a", 10_000, WINDOW, RECORDS) == 1


def test_a_fast_member_gets_whole_batches_and_a_slow_one_its_share() -> None:
    shares = FairShares()
    for member, seconds in (("fast", 0.005), ("slow", 1.5)):
        shares.delivered(member, 10.0)
        shares.acknowledged(member, 5, True, 10.0)
        shares.acknowledged(member, 10, False, 10.0 + seconds)
    assert shares.limit("fast", 64, WINDOW, RECORDS) is None
    assert shares.limit("slow", 64, WINDOW, RECORDS) == 15
    assert shares.limit("slow", 2, WINDOW, RECORDS) == 31


def test_a_new_member_is_expected_to_be_as_fast_as_the_others() -> None:
    shares = FairShares()
    for _ in range(5):
        shares.delivered("a", 10.0)
        shares.acknowledged("a", 1000, False, 10.1)
    assert shares.limit("new", 8, WINDOW, RECORDS) is None
    shares.forget("a")
    assert shares.limit("a", 8, WINDOW, RECORDS) is None


def test_the_speed_of_a_member_that_always_holds_a_record_is_measured_too() -> None:
    shares = FairShares()
    shares.delivered("a", 10.0)
    for number in range(1, 11):
        shares.acknowledged("a", 500, True, 10.0 + number * 0.05)
    assert shares.limit("a", 64, WINDOW, RECORDS) is None
