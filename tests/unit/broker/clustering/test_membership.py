"""A broker's place in its cluster, under a clock that the tests move."""

from __future__ import annotations

import asyncio

from flowstone.broker.clustering.membership import LEASE_SHARE, Membership
from flowstone.cluster.image.cluster_image import BrokerImage
from flowstone.cluster.image.records import BrokerFenced, BrokerUnregistered
from flowstone.cluster.memory_ensemble import MemoryEnsemble
from flowstone.cluster.metadata import Metadata
from flowstone.ports.clock import SimulatedClock
from flowstone.replication.lease import Lease

SESSION_S = 6.0
NODE = 1
TURNS_MAX = 100


class Broker:
    def __init__(self, ensemble: MemoryEnsemble) -> None:
        self.clock = SimulatedClock()
        self.consensus = ensemble.tie(self.clock)
        self.metadata = Metadata(self.consensus.log)
        self.lease = Lease(self.clock.monotonic)
        self.membership = Membership(self.consensus, self.metadata, self.lease, self.clock, "directory")

    async def join(self) -> None:
        await self.membership.join(BrokerImage(NODE, None, {}), is_clean=True, is_empty=False)

    async def pass_session(self) -> None:
        """A session's time, in steps in which it can do what is due."""
        for _ in range(int(SESSION_S)):
            self.clock.advance(1.0)
            for _ in range(TURNS_MAX):
                await asyncio.sleep(0)


def test_a_member_keeps_its_registration_and_its_lease() -> None:
    async def scenario() -> None:
        broker = Broker(MemoryEnsemble(SESSION_S))
        await broker.join()
        registered = broker.metadata.image.brokers[NODE]
        await broker.pass_session()
        assert broker.metadata.image.brokers[NODE] == registered
        assert broker.lease.left_s > LEASE_SHARE * SESSION_S / 2
        broker.membership.abort()

    asyncio.run(scenario())


def test_a_live_broker_that_was_taken_for_dead_and_forgotten_registers_again() -> None:
    async def scenario() -> None:
        broker = Broker(MemoryEnsemble(SESSION_S))
        await broker.join()
        epoch = broker.membership.epoch
        await broker.metadata.append([BrokerFenced(NODE, epoch), BrokerUnregistered(NODE, epoch)])
        await broker.pass_session()
        again = broker.metadata.image.brokers[NODE]
        assert not again.is_fenced
        assert again.epoch == broker.membership.epoch > epoch
        assert broker.lease.holds()
        broker.membership.abort()

    asyncio.run(scenario())
