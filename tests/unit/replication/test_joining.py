"""Followers that catch up and are not, or not yet, let into the ISR."""

from __future__ import annotations

import pytest

from flowstone.errors import ErrorCode
from flowstone.replication.in_sync import JOIN_WAIT_S
from tests.unit.replication.replicas import ReplicaWorld


@pytest.fixture
def world() -> ReplicaWorld:
    """Broker 3 has withdrawn, and fetches on."""
    world = ReplicaWorld()
    world.decide(isr=(1, 2))
    world.fetch(3, 0)
    return world


def commit(world: ReplicaWorld) -> int:
    world.append()
    world.flush()
    world.fetch(2, world.log.end.offset)
    return world.high_watermark


def test_the_high_watermark_waits_for_one_that_may_be_let_in(world: ReplicaWorld):
    assert len(world.proposals) == 1
    assert commit(world) == 0


def test_the_high_watermark_does_not_wait_for_one_that_was_not_let_in(world: ReplicaWorld):
    world.leading.isr_change_failed()
    assert commit(world) == 1


def test_one_that_was_not_let_in_is_proposed_again_when_it_fetches_again(world: ReplicaWorld):
    world.leading.isr_change_failed()
    commit(world)
    world.fetch(3, 1)
    assert len(world.proposals) == 2


@pytest.fixture
def held() -> tuple[ReplicaWorld, list[ErrorCode]]:
    """A record that the ISR (1, 2) has on disk. Broker 3 fetched while 2 was being let in, and then no more."""
    world = ReplicaWorld(isr=(1,))
    world.fetch(2, 0)
    world.fetch(3, 0)
    world.decide(isr=(1, 2))
    outcome = world.append()
    world.flush()
    world.fetch(2, 1)
    assert (world.high_watermark, outcome) == (0, [])
    return world, outcome


def test_records_are_committed_once_the_wait_for_a_silent_follower_is_over(held: tuple[ReplicaWorld, list[ErrorCode]]):
    world, outcome = held
    world.wait(JOIN_WAIT_S)
    assert (world.high_watermark, outcome) == (1, [ErrorCode.NONE])


def test_records_are_committed_as_soon_as_the_awaited_follower_is_dead(
    held: tuple[ReplicaWorld, list[ErrorCode]],
):
    world, outcome = held
    world.gone = {3}
    world.partition.move_high_watermark()
    assert outcome == [ErrorCode.NONE]


def test_no_timer_is_left_behind_when_the_leader_changes(held: tuple[ReplicaWorld, list[ErrorCode]]):
    world, _ = held
    leading = world.leading
    world.decide(leader=2, leader_epoch=4)
    assert leading._holding is None


def test_a_follower_that_the_cluster_would_not_let_in_does_not_hold_back_the_high_watermark(world: ReplicaWorld):
    world.leading.isr_change_failed()
    world.gone = {3}
    world.fetch(3, 0)
    world.leading.isr_change_failed()
    assert commit(world) == 1


def test_a_parked_fetch_that_is_read_again_does_not_bring_back_a_follower_that_was_taken_out():
    world = ReplicaWorld()
    world.fetch(3, 0)
    world.decide(isr=(1, 2))
    world.append()
    world.fetch(3, 0, is_repeated=True)
    assert not world.proposals
    world.flush()
    world.fetch(2, 1)
    assert world.high_watermark == 1
