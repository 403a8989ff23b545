"""What a leader proposes becomes a change of the metadata, without those whom the cluster would refuse."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from flowstone.broker.clustering.replica_roles import Replicas
from flowstone.cluster.image.cluster_image import BrokerImage, Endpoint, PartitionImage
from flowstone.cluster.image.records import BrokerFenced, BrokerRegistered, PartitionChanged, TopicCreated
from flowstone.cluster.logs.memory_log import MemoryLog
from flowstone.cluster.metadata import Metadata
from flowstone.config import BrokerConfig
from flowstone.errors import ErrorCode, StorageFault
from flowstone.ports.clock import SimulatedClock
from flowstone.replication.served_partitions import Partitions
from flowstone.replication.state import IsrMember
from tests.unit.replication.replicas import NODE, ReplicaWorld

LISTENER = "PLAINTEXT"


class Leader:
    """Broker 1 of three, which alone is in sync with its partition; a broker's epoch is ten times its id."""

    def __init__(self) -> None:
        self.world = ReplicaWorld(isr=(NODE,))
        self.partition = self.world.partition
        self.metadata = Metadata(MemoryLog())
        self.partitions, self.fetchers = Partitions(), Fetchers()
        self.replicas = Replicas(
            BrokerConfig(node_id=NODE),
            LISTENER,
            self.metadata,
            self.partitions,
            cast(Any, self.fetchers),
            self.world.lease,
            SimulatedClock(),
        )

    async def begin(self) -> None:
        state = self.world.state
        brokers = [BrokerImage(each, None, {LISTENER: Endpoint("h", 1)}, "", each * 10) for each in state.replicas]
        await self.metadata.append([BrokerRegistered(broker) for broker in brokers])
        topic = TopicCreated("t", self.partition.topic_id, (state,), {})
        await self.metadata.append([topic])

    async def propose(self, *members: tuple[int, int]) -> PartitionImage:
        """The partition afterwards."""
        self.replicas.propose(self.partition, tuple(IsrMember(*each) for each in members))
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            await task
        return self.metadata.image.topics["t"].partitions[0]

    def may_propose_again(self) -> bool:
        """Whether the partition has heard that nothing comes of its proposal."""
        return self.world.leading.in_sync.proposed is None


@pytest.fixture
def leader() -> Leader:
    return Leader()


def test_a_follower_that_died_does_not_keep_another_out(leader: Leader) -> None:
    async def scenario() -> None:
        await leader.begin()
        await leader.metadata.append([BrokerFenced(3, 30)])
        assert (await leader.propose((1, 10), (2, 20), (3, 30))).isr == (1, 2)

    asyncio.run(scenario())


def test_a_follower_that_fetched_in_a_former_life_does_not_keep_another_out(leader: Leader) -> None:
    async def scenario() -> None:
        await leader.begin()
        assert (await leader.propose((1, 10), (2, 20), (3, 29))).isr == (1, 2)

    asyncio.run(scenario())


def test_a_follower_that_the_cluster_does_not_know_does_not_keep_another_out(leader: Leader) -> None:
    async def scenario() -> None:
        await leader.begin()
        assert (await leader.propose((1, 10), (2, 20), (4, 40))).isr == (1, 2)

    asyncio.run(scenario())


def test_who_is_in_sync_already_stays_whatever_its_life(leader: Leader) -> None:
    """Its registration takes it out if it has to go; a leader that has not heard from it knows no epoch of it."""

    async def scenario() -> None:
        await leader.begin()
        state = await leader.propose((1, 10), (2, 20))
        leader.partition.update(state, NODE)
        assert (await leader.propose((1, -1), (2, -1), (3, 30))).isr == (1, 2, 3)

    asyncio.run(scenario())


def test_where_nobody_is_left_to_come_nothing_is_written_and_the_leader_may_propose_again(leader: Leader) -> None:
    async def scenario() -> None:
        await leader.begin()
        leader.world.fetch(3, 0)
        leader.world.leading.check_in_sync()
        assert not leader.may_propose_again()
        before = leader.metadata.image.version
        await leader.propose((1, 10), (3, 29))
        assert leader.metadata.image.version == before
        assert leader.may_propose_again()

    asyncio.run(scenario())


def test_a_proposal_that_the_cluster_refuses_may_be_made_again(leader: Leader) -> None:
    """It decided otherwise meanwhile, of which this broker has not heard yet."""

    async def scenario() -> None:
        await leader.begin()
        leader.world.fetch(2, 0, broker_epoch=20)
        leader.world.leading.check_in_sync()
        newer = replace(leader.world.state, partition_epoch=leader.world.state.partition_epoch + 1)
        await leader.metadata.append([PartitionChanged(leader.partition.topic_id, 0, newer)])
        assert (await leader.propose((1, 10), (2, 20))).isr == (1,)
        assert leader.may_propose_again()

    asyncio.run(scenario())


class Fetchers:
    """Remembers whom it was told not to follow with any more."""

    def __init__(self) -> None:
        self.unfollowed: list[object] = []

    def unfollow(self, partition: object) -> None:
        self.unfollowed.append(partition)


def test_a_broker_that_is_fenced_does_not_hold_back_the_high_watermark(leader: Leader) -> None:
    """Broker 3 fetched while 2 was being let in, and has died since."""

    async def scenario() -> None:
        await leader.begin()
        world = leader.world
        leader.partitions.add(leader.partition)
        for node_id in (2, 3):
            world.fetch(node_id, 0, broker_epoch=node_id * 10)
        world.decide(isr=(1, 2))
        outcome = world.append()
        world.flush()
        world.fetch(2, 1, broker_epoch=20)
        assert outcome == []
        world.gone = {3}
        await leader.metadata.append([BrokerFenced(3, 30)])
        assert outcome == [ErrorCode.NONE]

    asyncio.run(scenario())


def test_a_replica_whose_disk_failed_leaves_the_isr_again_if_a_late_fetch_brought_it_back(leader: Leader) -> None:
    async def scenario() -> None:
        await leader.begin()
        leader.partition.local.fail(StorageFault("the disk is gone"))
        leader.world.decide(leader=2, leader_epoch=4, isr=(1, 2))
        await leader.metadata.append([PartitionChanged(leader.partition.topic_id, 0, leader.world.state)])
        leader.replicas.placed(leader.partition)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            await task
        assert leader.metadata.image.topics["t"].partitions[0].isr == (2,)
        assert leader.partition in leader.fetchers.unfollowed

    asyncio.run(scenario())


def test_a_replica_on_a_full_disk_is_not_followed_with(leader: Leader) -> None:
    async def scenario() -> None:
        await leader.begin()
        leader.world.decide(leader=2, leader_epoch=4, isr=(2,))
        leader.replicas.is_full = lambda partition: True
        leader.replicas.placed(leader.partition)
        assert leader.fetchers.unfollowed == [leader.partition]

    asyncio.run(scenario())
