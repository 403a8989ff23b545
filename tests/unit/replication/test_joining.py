"""Followers that catch up and are not, or not yet, let into the ISR."""

from __future__ import annotations

import pytest

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
    world.partition.isr_change_failed()
    assert commit(world) == 1


def test_one_that_was_not_let_in_is_proposed_again_when_it_fetches_again(world: ReplicaWorld):
    world.partition.isr_change_failed()
    commit(world)
    world.fetch(3, 1)
    assert len(world.proposals) == 2
