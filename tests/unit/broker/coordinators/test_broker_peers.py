"""A connection to another broker ends with that broker's life, as the metadata tells it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from flowstone.broker.coordinators.broker_peers import BrokerPeers
from flowstone.client.errors import Disconnected
from flowstone.cluster.image.cluster_image import BrokerImage, Endpoint
from flowstone.cluster.image.records import BrokerFenced, BrokerRegistered, BrokerUnregistered, MetadataRecord
from flowstone.cluster.logs.memory_log import MemoryLog
from flowstone.cluster.metadata import Metadata
from flowstone.ports.clock import SimulatedClock
from flowstone.ports.network import Channel
from flowstone.ports.simulated_network import SimulatedNetwork
from flowstone.wire.messages import ListTransactionsRequest, ListTransactionsResponse

OTHER, LISTENER, TIMEOUT_S, TURNS = 2, "L", 60.0, 10


class Bench:
    """Broker 1's connections; broker 2 accepts them and never says anything."""

    def __init__(self) -> None:
        clock = SimulatedClock()
        network = SimulatedNetwork(clock)
        self.accepted: list[Channel] = []
        self.listener = network.host("b2").bind("", 0, self.accepted.append)
        self.metadata = Metadata(MemoryLog())
        self.peers = BrokerPeers(LISTENER, self.metadata, clock, network.host("b1"))

    async def register(self) -> BrokerImage:
        broker = BrokerImage(OTHER, None, {LISTENER: Endpoint("b2", self.listener.port)}, incarnation="one")
        await self.metadata.append([BrokerRegistered(broker)])
        return self.metadata.image.brokers[OTHER]

    async def ask(self) -> asyncio.Future[ListTransactionsResponse]:
        asking = self.peers.ask(OTHER, ListTransactionsRequest(), ListTransactionsResponse, TIMEOUT_S)
        asked = asyncio.ensure_future(asking)
        await turns()
        assert not asked.done()
        return asked


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def run(scenario: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        bench = Bench()
        await scenario(bench)
        bench.peers.close()
        await turns()

    asyncio.run(main())


ENDS: dict[str, Callable[[BrokerImage], list[MetadataRecord]]] = {
    "fenced": lambda broker: [BrokerFenced(OTHER, broker.epoch)],
    "registered anew": lambda broker: [BrokerRegistered(replace(broker, incarnation="two", epoch=broker.epoch + 1))],
    "stopping": lambda broker: [BrokerRegistered(replace(broker, incarnation="", is_fenced=True))],
    "gone": lambda broker: [BrokerFenced(OTHER, broker.epoch), BrokerUnregistered(OTHER, broker.epoch)],
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("is_connected", [True, False])
def test_requests_to_a_broker_whose_life_is_over_fail_at_once(end: str, *, is_connected: bool) -> None:
    async def scenario(bench: Bench) -> None:
        broker = await bench.register()
        if is_connected:
            bench.listener.start()
        asked = await bench.ask()
        assert len(bench.accepted) == is_connected
        await bench.metadata.append(ENDS[end](broker))
        await turns()
        with pytest.raises(Disconnected):
            asked.result()

    run(scenario)


def test_the_next_request_makes_another_connection() -> None:
    async def scenario(bench: Bench) -> None:
        broker = await bench.register()
        bench.listener.start()
        await bench.ask()
        await bench.metadata.append([BrokerRegistered(replace(broker, incarnation="two", epoch=broker.epoch + 1))])
        await bench.ask()
        assert len(bench.accepted) == 2

    run(scenario)


def test_other_changes_leave_connections_alone() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.register()
        bench.listener.start()
        asked = await bench.ask()
        await bench.metadata.append([BrokerRegistered(BrokerImage(3, None, {}, incarnation="x"))])
        await turns()
        assert not asked.done()

    run(scenario)
