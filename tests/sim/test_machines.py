"""What machines, their disks and their network do in a simulation must be what real ones do, and be seen as it is."""

from __future__ import annotations

import asyncio
from random import Random
from struct import Struct

import pytest

from flowstone.types import TopicPartition

from .clock import ProcessClock
from .disk import SimulatedDisk
from .loop import Livelock, Process, SimulatedLoop
from .network import Channel, SimulatedNetwork
from .replicas import Pasts, Replica

SEED = 1
PARTITION = TopicPartition("tasks", 0)
DIRECTORY = f"/{PARTITION}"
_HEADER = Struct(">qii7xi")


@pytest.fixture
def loop() -> SimulatedLoop:
    return SimulatedLoop()


def test_time_moves_only_when_nobody_has_anything_to_do(loop: SimulatedLoop) -> None:
    process, seen = Process(loop, "p", 1), []

    async def wait() -> None:
        await ProcessClock(loop).sleep(3600)
        seen.append(loop.time())

    process.start(wait())
    loop.run_until(7200)
    assert seen == [3600]


def test_a_paused_process_takes_its_turns_late_and_in_order(loop: SimulatedLoop) -> None:
    process, seen = Process(loop, "p", 1), []
    for delay_s in (2, 1):
        process.later(delay_s, lambda delay_s=delay_s: seen.append((delay_s, loop.time())))
    process.pause()
    loop.run_until(5)
    assert not seen
    process.resume()
    loop.run_until(6)
    assert seen == [(1, 5), (2, 5)]


def test_a_killed_process_does_not_even_clean_up(loop: SimulatedLoop) -> None:
    process, seen = Process(loop, "p", 1), []

    async def work() -> None:
        try:
            await ProcessClock(loop).sleep(1)
        finally:
            seen.append("cleaned up")

    process.start(work())
    loop.run_until(0.5)
    process.kill()
    loop.run_until(5)
    assert not seen


def test_what_a_process_sets_off_belongs_to_it(loop: SimulatedLoop) -> None:
    process, seen = Process(loop, "p", 1), []

    async def child() -> None:
        seen.append("child")

    async def parent() -> None:
        await ProcessClock(loop).sleep(1)
        await asyncio.ensure_future(child())

    process.start(parent())
    loop.run_until(0.5)
    process.pause()
    loop.run_until(2)
    assert not seen
    process.resume()
    loop.run_until(2.1)
    assert seen == ["child"]


def test_turns_without_end_are_noticed(loop: SimulatedLoop) -> None:
    process = Process(loop, "p", 1)

    def again() -> None:
        process.post(again)

    process.post(again)
    with pytest.raises(Livelock):
        loop.run_until(1)


def test_a_power_loss_in_the_middle_of_a_flush_may_take_it(loop: SimulatedLoop) -> None:
    disk, process = SimulatedDisk(loop, Random(SEED)), Process(loop, "p", 1)
    disk.make_directory("/data")
    file = disk.open("/data/a.log", create=True)
    disk.sync_directory("/data")
    file.write(0, [b"abc"])
    process.post(lambda: disk.threads(1, "t").submit(file.sync))
    loop.run_until(0)
    process.kill()
    loop.run_until(1)
    disk.lose_power()
    assert disk.read("/data/a.log") == b""


def test_who_waits_for_a_thread_has_its_work_done_at_once(loop: SimulatedLoop) -> None:
    disk, results = SimulatedDisk(loop, Random(SEED)), []
    Process(loop, "p", 1).post(lambda: results.append(disk.threads(1, "t").submit(lambda: 5).result()))
    loop.run_until(0)
    assert results == [5]


class World:
    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop, self.network = loop, SimulatedNetwork(loop, Random(SEED))
        self.processes = {name: Process(loop, name, number) for number, name in enumerate("ab", 1)}
        self.accepted: list[Channel] = []
        listener = self.network.host("b", self.processes["b"]).bind("b", 9092, self.accepted.append)  # type: ignore[arg-type]
        listener.start()
        host = self.network.host("a", self.processes["a"])
        self.channel = loop.run(self.processes["a"], host.connect("b", 9092, 1.0), 2.0)

    def received(self) -> bytes:
        buffer = memoryview(bytearray(100))
        return bytes(buffer[: self.accepted[0].receive_into(buffer)])


def test_what_is_sent_over_a_cut_link_arrives_once_it_has_healed(loop: SimulatedLoop) -> None:
    world = World(loop)
    link = world.network.link("a", "b")
    link.is_cut = True
    world.channel.send([b"late"])
    loop.run_until(loop.time() + 5)
    with pytest.raises(BlockingIOError):
        world.received()
    link.heal()
    loop.run_until(loop.time() + 1)
    assert world.received() == b"late"


def test_a_killed_process_has_its_connections_reset(loop: SimulatedLoop) -> None:
    world = World(loop)
    world.processes["b"].kill()
    world.network.end(world.processes["b"], "b", loses_power=False)
    loop.run_until(loop.time() + 1)
    with pytest.raises(ConnectionResetError):
        world.channel.receive_into(memoryview(bytearray(1)))


def test_a_machine_without_power_says_nothing(loop: SimulatedLoop) -> None:
    world = World(loop)
    world.processes["b"].kill()
    world.network.end(world.processes["b"], "b", loses_power=True)
    world.channel.send([b"anybody there?"])
    loop.run_until(loop.time() + 1)
    with pytest.raises(BlockingIOError):
        world.channel.receive_into(memoryview(bytearray(1)))


def test_only_values_of_producers_are_spoiled(loop: SimulatedLoop) -> None:
    world = World(loop)
    world.network.link("a", "b").flips = 1
    world.channel.send([b"a header"])
    world.channel.send([b"p0.1/7/p0.1/7/p0.1/7/"])
    loop.run_until(loop.time() + 1)
    received = world.received()
    assert received.startswith(b"a header")
    assert received != b"a headerp0.1/7/p0.1/7/p0.1/7/"


def batch(offset: int, content: bytes) -> bytes:
    """A batch of one record, of epoch 0."""
    return _HEADER.pack(offset, _HEADER.size - 12 + len(content), 0, 0) + content


def disk_with(begin_offset: int, *contents: bytes) -> SimulatedDisk:
    disk = SimulatedDisk(SimulatedLoop(), Random(1))
    disk.make_directory(DIRECTORY)
    write(disk, begin_offset, *contents)
    return disk


def write(disk: SimulatedDisk, begin_offset: int, *contents: bytes) -> None:
    file = disk.open(f"{DIRECTORY}/{begin_offset:020}.log", create=True)
    file.write(0, [batch(begin_offset + index, each) for index, each in enumerate(contents)])


def checksums(disk: SimulatedDisk, pasts: Pasts) -> list[int]:
    return [each.checksum for each in Replica(disk, "", PARTITION, pasts).written.read_on()]


@pytest.mark.parametrize(("content", "is_same"), [(b"c", True), (b"X", False)])
def test_a_log_without_its_beginning_is_compared_in_the_rest(content: bytes, is_same: bool) -> None:
    pasts: Pasts = {}
    whole = checksums(disk_with(0, b"a", b"b", b"c", b"d"), pasts)
    rest = checksums(disk_with(2, content, b"d"), pasts)
    assert (rest == whole[2:]) is is_same


def test_a_log_that_begins_again_forgets_the_segments_that_were_removed() -> None:
    pasts: Pasts = {}
    whole = checksums(disk_with(0, b"a", b"b", b"c", b"d"), pasts)
    disk = disk_with(0, b"a")
    replica = Replica(disk, "", PARTITION, pasts)
    replica.written.read_on()
    disk.remove(f"{DIRECTORY}/{0:020}.log")
    write(disk, 2, b"c", b"d")
    assert [each.checksum for each in replica.written.read_on()] == whole[2:]
    assert (replica.written.begin_offset, replica.written.end_offset) == (2, 4)


def test_an_empty_log_ends_where_it_begins() -> None:
    log = Replica(disk_with(7), "", PARTITION, {}).written
    assert not log.read_on()
    assert (log.begin_offset, log.end_offset, log.checksum_at(7)) == (7, 7, None)
