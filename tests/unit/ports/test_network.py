"""Both networks keep one contract; the simulated one can be slow and cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from flowstone.ports.clock import SimulatedClock
from flowstone.ports.loops import new_event_loop
from flowstone.ports.network import Channel, Network, SystemNetwork
from flowstone.ports.simulated_network import SimulatedNetwork

TIMEOUT_S = 5.0
MakeNetwork = Callable[[], tuple[Network, Network, str]]


def system() -> tuple[Network, Network, str]:
    return SystemNetwork(), SystemNetwork(), "127.0.0.1"


def simulated() -> tuple[Network, Network, str]:
    network = SimulatedNetwork(SimulatedClock())
    return network.host("one"), network.host("two"), "two"


@pytest.fixture(params=[system, simulated])
def make_network(request: pytest.FixtureRequest) -> MakeNetwork:
    made: MakeNetwork = request.param
    return made


def run(scenario: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(scenario)


async def received(channel: Channel) -> bytes:
    """What arrives next, b"" at the end of the stream."""
    readable = asyncio.Event()
    channel.on_readable(readable.set)
    await asyncio.wait_for(readable.wait(), TIMEOUT_S)
    channel.on_readable(None)
    buffer = memoryview(bytearray(100))
    return bytes(buffer[: channel.receive_into(buffer)])


async def connected(make_network: MakeNetwork) -> tuple[Channel, Channel, Callable[[], None]]:
    ours, theirs, host = make_network()
    accepted: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()
    listener = theirs.bind("", 0, accepted.set_result)
    listener.start()
    channel = await ours.connect(host, listener.port, TIMEOUT_S)
    return channel, await asyncio.wait_for(accepted, TIMEOUT_S), listener.close


def test_what_one_side_sends_the_other_receives(make_network: MakeNetwork):
    async def scenario() -> None:
        ours, theirs, close = await connected(make_network)
        assert ours.send([b"he", b"llo"]) == 5
        assert await received(theirs) == b"hello"
        theirs.send([b"you"])
        assert await received(ours) == b"you"
        ours.close()
        assert await received(theirs) == b""
        theirs.close()
        close()

    run(scenario())


def test_an_aborted_connection_ends_for_the_other_side_too(make_network: MakeNetwork):
    async def scenario() -> None:
        ours, theirs, close = await connected(make_network)
        ours.abort()
        with suppress(ConnectionResetError):
            assert await received(theirs) == b""
        theirs.close()
        close()

    run(scenario())


def test_nobody_listening_is_a_refusal(make_network: MakeNetwork):
    async def scenario() -> None:
        ours, theirs, host = make_network()
        listener = theirs.bind("", 0, lambda channel: None)
        port = listener.port
        listener.close()
        with pytest.raises(ConnectionRefusedError):
            await ours.connect(host, port, TIMEOUT_S)

    run(scenario())


def test_who_connects_before_the_listener_starts_waits_for_it(make_network: MakeNetwork):
    async def scenario() -> None:
        ours, theirs, host = make_network()
        accepted: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()
        listener = theirs.bind("", 0, accepted.set_result)
        channel = await ours.connect(host, listener.port, TIMEOUT_S)
        channel.send([b"early"])
        listener.start()
        served = await asyncio.wait_for(accepted, TIMEOUT_S)
        assert await received(served) == b"early"
        for each in (channel, served, listener):
            each.close()

    run(scenario())


class Simulated:
    """A stream from host one to host two, on a clock that a test moves."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self.clock = SimulatedClock()
        self.network = SimulatedNetwork(self.clock, (lambda *_: delay_s) if delay_s else None)
        self.accepted: list[Channel] = []
        self.listener = self.network.host("two").bind("", 9092, self.accepted.append)
        self.listener.start()

    async def connect(self, timeout_s: float = TIMEOUT_S) -> Channel:
        return await self.network.host("one").connect("two", 9092, timeout_s)


def arrived(channel: Channel) -> bytes | None:
    """None if there is nothing yet."""
    buffer = memoryview(bytearray(100))
    try:
        return bytes(buffer[: channel.receive_into(buffer)])
    except BlockingIOError:
        return None


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_link_cut_one_way_lets_the_other_way_through():
    async def scenario() -> None:
        simulated = Simulated()
        ours = await simulated.connect()
        simulated.network.cut("one", "two")
        ours.send([b"lost?"])
        simulated.accepted[0].send([b"heard"])
        assert (arrived(simulated.accepted[0]), arrived(ours)) == (None, b"heard")

    run(scenario())


def test_what_was_sent_over_a_cut_link_arrives_once_it_is_mended():
    async def scenario() -> None:
        simulated = Simulated()
        ours = await simulated.connect()
        simulated.network.separate(["one"], ["two"])
        ours.send([b"first "])
        ours.send([b"second"])
        ours.close()
        assert arrived(simulated.accepted[0]) is None
        simulated.network.heal()
        assert [arrived(simulated.accepted[0]) for _ in range(2)] == [b"first second", b""]

    run(scenario())


def test_what_an_aborted_connection_had_sent_over_a_cut_link_never_arrives():
    async def scenario() -> None:
        simulated = Simulated()
        ours = await simulated.connect()
        simulated.network.separate(["one"], ["two"])
        ours.send([b"late"])
        ours.abort()
        simulated.network.heal()
        assert arrived(simulated.accepted[0]) == b""

    run(scenario())


def test_connecting_over_a_cut_link_takes_until_its_timeout():
    async def scenario() -> None:
        simulated = Simulated()
        simulated.network.cut("two", "one")
        connecting = asyncio.ensure_future(simulated.connect(timeout_s=3.0))
        await turns()
        simulated.clock.advance(2.9)
        await turns()
        assert not connecting.done()
        simulated.clock.advance(0.2)
        with pytest.raises(TimeoutError):
            await connecting
        simulated.network.heal()
        assert arrived(simulated.accepted[0]) == b""  # what was accepted meanwhile is closed again

    run(scenario())


def test_a_slow_link_keeps_the_order_of_what_it_carries():
    async def scenario() -> None:
        simulated = Simulated(delay_s=0.5)
        connecting = asyncio.ensure_future(simulated.connect())
        await turns()
        simulated.clock.advance(1.0)
        ours = await connecting
        ours.send([b"one "])
        simulated.network.delay = None
        ours.send([b"two"])
        simulated.clock.advance(0.4)
        assert arrived(simulated.accepted[0]) is None
        simulated.clock.advance(0.1)
        assert arrived(simulated.accepted[0]) == b"one two"

    run(scenario())


def test_a_sender_whose_bytes_do_not_arrive_finds_no_space_after_a_while():
    async def scenario() -> None:
        simulated = Simulated()
        ours = await simulated.connect()
        simulated.network.cut("one", "two")
        ours.send([bytes(1 << 20)])
        with pytest.raises(BlockingIOError):
            ours.send([b"more"])

    run(scenario())


def test_an_address_is_taken_once():
    async def scenario() -> None:
        simulated = Simulated()
        with pytest.raises(OSError, match="in use"):
            simulated.network.host("two").bind("", 9092, simulated.accepted.append)
        simulated.listener.close()
        simulated.network.host("two").bind("", 9092, simulated.accepted.append)

    run(scenario())
