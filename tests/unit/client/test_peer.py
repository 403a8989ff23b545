from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from flowstone.client.connection import Address
from flowstone.client.errors import BadAnswer, Disconnected
from flowstone.client.peer import Peer
from flowstone.ports.clock import SimulatedClock, SystemClock
from flowstone.ports.loops import new_event_loop
from flowstone.ports.network import Channel, SystemNetwork
from flowstone.ports.simulated_network import SimulatedNetwork
from flowstone.types import ZERO_UUID
from flowstone.wire.messages import (
    FetchRequest,
    FetchRequestReplicaState,
    FetchRequestTopic,
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
    MetadataRequest,
    MetadataResponse,
)
from tests.unit.client.scripted_broker import CLOSE, SILENCE, VERSIONS, ScriptedBroker, Torn

TIMEOUT_S = 5.0
FETCH_KEY, METADATA_KEY = 1, 3


async def connect(broker: ScriptedBroker, timeout_s: float = TIMEOUT_S) -> Peer:
    return await Peer.connect(SystemNetwork(), SystemClock(), Address(broker.host, broker.port), "broker-1", timeout_s)


def run(broker: ScriptedBroker, scenario: Callable[[Peer], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        peer = await connect(broker)
        try:
            await scenario(peer)
        finally:
            peer.close()

    with broker, asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())


def fetch(offset: int = 0) -> FetchRequest:
    topic = FetchRequestTopic(topic_id=bytes(range(16)), partitions=[])
    return FetchRequest(
        replica_state=FetchRequestReplicaState(replica_id=2, replica_epoch=7), max_wait_ms=offset, topics=[topic]
    )


def records(data: bytes) -> FetchResponse:
    partition = FetchResponsePartition(partition_index=0, records=data)
    return FetchResponse(responses=[FetchResponseTopic(topic_id=ZERO_UUID, partitions=[partition])])


def fetched(response: FetchResponse) -> bytes:
    data = response.responses[0].partitions[0].records
    assert isinstance(data, memoryview)
    return bytes(data)


def test_a_request_goes_out_in_the_newest_version_and_its_response_comes_back():
    broker = ScriptedBroker(lambda request: records(b"some"))

    async def scenario(peer: Peer) -> None:
        assert fetched(await peer.ask(fetch(), FetchResponse, TIMEOUT_S)) == b"some"
        assert broker.requests[-1].replica_state == fetch().replica_state

    run(broker, scenario)


def test_requests_on_their_way_together_each_get_their_own_answer():
    broker = ScriptedBroker(lambda request: records(b"%d" % request.max_wait_ms))

    async def scenario(peer: Peer) -> None:
        answers = await asyncio.gather(*(peer.ask(fetch(each), FetchResponse, TIMEOUT_S) for each in range(20)))
        assert [fetched(each) for each in answers] == [b"%d" % each for each in range(20)]

    run(broker, scenario)


@pytest.mark.parametrize("size_bytes", [65_400, 65_536, 1 << 20, 11 << 20])
def test_a_long_response_arrives_whole(size_bytes: int):
    data = bytes(range(256)) * (size_bytes // 256)
    broker = ScriptedBroker(lambda request: records(data))

    async def scenario(peer: Peer) -> None:
        for _ in range(3):
            assert fetched(await peer.ask(fetch(), FetchResponse, TIMEOUT_S)) == data

    run(broker, scenario)


def test_the_memory_of_a_response_is_used_again_once_nobody_holds_it():
    broker = ScriptedBroker(lambda request: records(bytes(100_000)))

    async def scenario(peer: Peer) -> None:
        held = await peer.ask(fetch(), FetchResponse, TIMEOUT_S)
        address = held.responses[0].partitions[0].records.obj  # type: ignore[union-attr]
        other = await peer.ask(fetch(), FetchResponse, TIMEOUT_S)
        assert other.responses[0].partitions[0].records.obj is not address  # type: ignore[union-attr]
        del held
        again = await peer.ask(fetch(), FetchResponse, TIMEOUT_S)
        assert again.responses[0].partitions[0].records.obj is address  # type: ignore[union-attr]

    run(broker, scenario)


def test_nobody_listening_is_told():
    broker = ScriptedBroker(lambda request: CLOSE)
    broker.stop()
    with asyncio.Runner(loop_factory=new_event_loop) as runner, pytest.raises(Disconnected, match="no broker answers"):
        runner.run(connect(broker))


def test_a_broker_that_hangs_up_fails_everybody_who_waits():
    broker = ScriptedBroker(lambda request: CLOSE if request.max_wait_ms == 1 else SILENCE)

    async def scenario(peer: Peer) -> None:
        asked = [asyncio.ensure_future(peer.ask(fetch(each), FetchResponse, TIMEOUT_S)) for each in range(2)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(each) for each in answers] == [Disconnected, Disconnected]
        assert not peer.is_open
        with pytest.raises(Disconnected):
            await peer.ask(fetch(), FetchResponse, TIMEOUT_S)

    run(broker, scenario)


def test_no_answer_in_time_closes_the_connection():
    async def scenario(peer: Peer) -> None:
        with pytest.raises(Disconnected, match="in time"):
            await peer.ask(fetch(), FetchResponse, 0.05)
        assert not peer.is_open

    run(ScriptedBroker(lambda request: SILENCE), scenario)


def test_a_request_that_timed_out_does_not_arrive_later():
    """Whoever sent it may have repeated it, and gone on."""

    async def scenario() -> None:
        clock = SimulatedClock()
        network = SimulatedNetwork(clock, lambda *_: 1.0)
        accepted: list[Channel] = []
        listener = network.host("two").bind("", 9092, accepted.append)
        listener.start()
        connecting = asyncio.ensure_future(
            Peer.connect(network.host("one"), clock, Address("two", 9092), "broker-1", TIMEOUT_S)
        )
        while not connecting.done():
            await asyncio.sleep(0)
            clock.advance(0.1)
            if accepted:
                network.cut("one", "two")
        with pytest.raises(Disconnected, match="in time"):
            connecting.result()
        network.heal()
        clock.advance(2.0)
        assert accepted[0].receive_into(memoryview(bytearray(100))) == 0

    asyncio.run(scenario())


def test_a_caller_that_gives_up_closes_the_connection():
    async def scenario(peer: Peer) -> None:
        asked = asyncio.ensure_future(peer.ask(fetch(), FetchResponse, TIMEOUT_S))
        await asyncio.sleep(0)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert not peer.is_open

    run(ScriptedBroker(lambda request: SILENCE), scenario)


@pytest.mark.parametrize("frame", [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\x04\0\0\x10\0", b"\0\0\0\x05"])
def test_what_is_not_the_protocol_closes_the_connection(frame: bytes):
    async def scenario(peer: Peer) -> None:
        with pytest.raises((BadAnswer, Disconnected)):
            await peer.ask(fetch(), FetchResponse, TIMEOUT_S)
        assert not peer.is_open

    run(ScriptedBroker(lambda request: Torn(frame)), scenario)


def test_an_older_broker_is_asked_in_its_own_version():
    broker = ScriptedBroker(lambda request: MetadataResponse(), VERSIONS | {METADATA_KEY: (0, 9)})

    async def scenario(peer: Peer) -> None:
        await peer.ask(MetadataRequest(), MetadataResponse, TIMEOUT_S)
        assert isinstance(broker.requests[-1], MetadataRequest)

    run(broker, scenario)


def test_a_broker_that_knows_no_broker_epochs_is_refused_and_the_connection_stays():
    broker = ScriptedBroker(lambda request: MetadataResponse(), VERSIONS | {FETCH_KEY: (4, 14)})

    async def scenario(peer: Peer) -> None:
        with pytest.raises(BadAnswer, match="no version of Fetch"):
            await peer.ask(fetch(), FetchResponse, TIMEOUT_S)
        assert peer.is_open

    run(broker, scenario)
