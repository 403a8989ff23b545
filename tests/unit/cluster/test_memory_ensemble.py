"""Brokers of one process that agree through memory: one log, compare-and-set, memberships that run out."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from flowstone.cluster.image.cluster_image import ClusterImage
from flowstone.cluster.image.records import BrokerConfigChanged, MetadataRecord, ProducerIdsReserved
from flowstone.cluster.logs.consensus import Member
from flowstone.cluster.logs.metadata_log import Outrun
from flowstone.cluster.memory_ensemble import MemoryConsensus, MemoryEnsemble
from flowstone.cluster.metadata import Metadata
from flowstone.errors import StartupError
from flowstone.ports.clock import SimulatedClock

TIMEOUT_S = 6.0


def run(body: Coroutine[Any, Any, None]) -> None:
    asyncio.run(body)


def note(name: str) -> list[MetadataRecord]:
    return [BrokerConfigChanged("1", {name: "x"})]


def count_one(image: ClusterImage) -> tuple[Sequence[MetadataRecord], int]:
    """A decision that shows a lost or doubled change: each takes the next number."""
    return [ProducerIdsReserved(image.next_producer_id + 1)], image.next_producer_id


class Slow:
    """Delivers when told to."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()

    def __call__(self, callback: Callable[[], None]) -> None:
        self.waiting.append(callback)

    def deliver(self, count: int) -> None:
        for _ in range(count):
            self.waiting.popleft()()

    def deliver_all(self) -> None:
        while self.waiting:
            self.waiting.popleft()()


def tie(ensemble: MemoryEnsemble, clock: SimulatedClock | None = None, **options: Any) -> MemoryConsensus:
    return ensemble.tie(clock or SimulatedClock(), **options)


# The log


def test_an_append_is_seen_by_every_broker_before_it_returns() -> None:
    async def body() -> None:
        ensemble = MemoryEnsemble()
        first, second = Metadata(tie(ensemble).log), Metadata(tie(ensemble).log)
        await first.append(note("a"))
        assert second.image is first.image
        assert second.image.broker_configs["1"] == {"a": "x"}

    run(body())


def test_a_broker_that_attaches_later_loads_the_whole_log() -> None:
    async def body() -> None:
        ensemble = MemoryEnsemble()
        first = Metadata(tie(ensemble).log)
        await first.append(note("a"))
        assert Metadata(tie(ensemble).log).image is first.image

    run(body())


def test_an_append_decided_on_an_old_image_is_outrun_and_its_maker_has_seen_what_came_first() -> None:
    async def body() -> None:
        ensemble, slow = MemoryEnsemble(), Slow()
        quick, late = Metadata(tie(ensemble).log), Metadata(tie(ensemble, deliver=slow).log)
        await quick.append(note("a"))
        append = asyncio.create_task(late.append(note("b")))
        await asyncio.sleep(0)
        assert late.image.version == -1
        slow.deliver_all()
        with pytest.raises(Outrun):
            await append
        assert late.image is quick.image

    run(body())


def test_appends_that_follow_an_outrun_one_are_outrun_with_it() -> None:
    async def body() -> None:
        ensemble, slow = MemoryEnsemble(), Slow()
        quick, late = Metadata(tie(ensemble).log), Metadata(tie(ensemble, deliver=slow).log)
        appends = [asyncio.create_task(late.append(note(name))) for name in "ab"]
        await asyncio.sleep(0)
        await quick.append(note("c"))
        slow.deliver_all()
        assert all(isinstance(each, Outrun) for each in await asyncio.gather(*appends, return_exceptions=True))
        assert late.image is quick.image
        assert dict(late.image.broker_configs["1"]) == {"c": "x"}

    run(body())


def test_an_outrun_change_is_decided_again_and_none_is_lost_or_made_twice() -> None:
    async def body() -> None:
        ensemble, slows = MemoryEnsemble(), [Slow(), Slow(), Slow()]
        brokers = [Metadata(tie(ensemble, deliver=slow).log) for slow in slows]
        changes = [asyncio.create_task(broker.change(count_one)) for broker in brokers for _ in range(20)]
        while not all(change.done() for change in changes):
            for slow in slows:
                slow.deliver(min(1, len(slow.waiting)))
            await asyncio.sleep(0)
        assert sorted(change.result() for change in changes) == list(range(60))
        for slow in slows:
            slow.deliver_all()
        assert brokers[0].image == brokers[1].image == brokers[2].image

    run(body())


def test_brokers_with_a_thread_each_race_and_none_is_lost_or_made_twice() -> None:
    ensemble, numbers = MemoryEnsemble(), list[int]()
    images: list[ClusterImage] = []
    everybody_done = threading.Barrier(3)

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        metadata = Metadata(tie(ensemble, loop=loop).log)
        for _ in range(100):
            numbers.append(await metadata.change(count_one))
        await loop.run_in_executor(None, everybody_done.wait)
        await asyncio.sleep(0)  # what was called threadsafe before has its turn
        images.append(metadata.image)

    threads = [threading.Thread(target=run, args=(serve(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(300))
    assert images[0] is images[1] is images[2]


def test_the_append_of_an_unreachable_broker_waits_and_succeeds_when_it_is_reachable() -> None:
    async def body() -> None:
        ensemble = MemoryEnsemble()
        broker = tie(ensemble)
        metadata, other = Metadata(broker.log), Metadata(tie(ensemble).log)
        await broker.join(1, "directory")
        ensemble.cut(1)
        append = asyncio.create_task(metadata.append(note("a")))
        await asyncio.sleep(0)
        assert not append.done()
        assert other.image.version == -1
        ensemble.heal(1)
        await append
        assert other.image is metadata.image

    run(body())


def test_an_append_that_came_through_while_its_answer_was_lost_is_no_failure() -> None:
    async def body() -> None:
        ensemble, slow = MemoryEnsemble(), Slow()
        broker = tie(ensemble, deliver=slow)
        metadata, other = Metadata(broker.log), Metadata(tie(ensemble).log)
        await broker.join(1, "directory")
        slow.deliver_all()
        append = asyncio.create_task(metadata.append(note("a")))
        await asyncio.sleep(0)
        slow.deliver(1)
        assert other.image.version == 0
        ensemble.cut(1)
        slow.deliver_all()
        await other.append(note("b"))
        assert metadata.image.version == -1
        ensemble.heal(1)
        await append
        assert metadata.image is other.image

    run(body())


def test_an_append_that_was_cut_off_is_outrun_by_what_happened_meanwhile() -> None:
    async def body() -> None:
        ensemble = MemoryEnsemble()
        broker = tie(ensemble)
        metadata, other = Metadata(broker.log), Metadata(tie(ensemble).log)
        await broker.join(1, "directory")
        ensemble.cut(1)
        append = asyncio.create_task(metadata.append(note("a")))
        await asyncio.sleep(0)
        await other.append(note("b"))
        ensemble.heal(1)
        with pytest.raises(Outrun):
            await append
        assert metadata.image is other.image

    run(body())


def test_a_killed_broker_appends_nothing_more_and_hears_nothing_more() -> None:
    async def body() -> None:
        ensemble, slow = MemoryEnsemble(), Slow()
        broker = tie(ensemble, deliver=slow)
        metadata, other = Metadata(broker.log), Metadata(tie(ensemble).log)
        append = asyncio.create_task(metadata.append(note("a")))
        await asyncio.sleep(0)
        broker.abort()
        slow.deliver_all()
        await other.append(note("b"))
        with pytest.raises(asyncio.CancelledError):
            await append
        assert metadata.image.version == -1
        assert dict(other.image.broker_configs["1"]) == {"b": "x"}

    run(body())


# Memberships


def test_members_are_listed_by_when_they_joined() -> None:
    async def body() -> None:
        ensemble = MemoryEnsemble()
        ties = {node_id: tie(ensemble) for node_id in (3, 1, 2)}
        incarnations = {node_id: await each.join(node_id, f"d{node_id}") for node_id, each in ties.items()}
        expected = [Member(node_id, incarnations[node_id]) for node_id in (3, 1, 2)]
        assert all(list(each.members) == expected for each in ties.values())

    run(body())


def test_a_member_that_does_not_renew_is_removed_after_the_session_timeout() -> None:
    async def body() -> None:
        ensemble, clock = MemoryEnsemble(TIMEOUT_S), SimulatedClock()
        silent, other = tie(ensemble, clock), tie(ensemble, clock)
        await silent.join(1, "a")
        await other.join(2, "b")
        heard: list[list[int]] = []
        silent.on_members(lambda: heard.append([member.node_id for member in silent.members]))
        clock.advance(TIMEOUT_S / 2)
        assert await other.renew()
        clock.advance(TIMEOUT_S / 2)
        assert await other.renew()
        assert [member.node_id for member in other.members] == [2]
        assert heard == [[2]]
        assert not await silent.renew()

    run(body())


def test_listing_the_members_ends_the_expired_memberships() -> None:
    async def body() -> None:
        ensemble, clock = MemoryEnsemble(TIMEOUT_S), SimulatedClock()
        broker = tie(ensemble, clock)
        await broker.join(1, "a")
        clock.advance(TIMEOUT_S)
        assert list(broker.members) == []

    run(body())


def test_a_member_that_joins_again_has_another_incarnation_and_is_the_junior() -> None:
    async def body() -> None:
        ensemble, clock = MemoryEnsemble(TIMEOUT_S), SimulatedClock()
        first, second = tie(ensemble, clock), tie(ensemble, clock)
        before = await first.join(1, "a")
        await second.join(2, "b")
        after = await first.join(1, "a")
        assert after != before
        assert [member.node_id for member in second.members] == [2, 1]
        assert await first.renew()

    run(body())


def test_a_node_id_of_another_data_directory_is_refused() -> None:
    async def body() -> None:
        ensemble = MemoryEnsemble()
        await tie(ensemble).join(1, "a")
        with pytest.raises(StartupError, match="node id 1"):
            await tie(ensemble).join(1, "b")

    run(body())


def test_a_leaving_member_is_removed_at_once_and_a_killed_one_when_its_session_ends() -> None:
    async def body() -> None:
        ensemble, clock = MemoryEnsemble(TIMEOUT_S), SimulatedClock()
        leaver, killed, other = (tie(ensemble, clock) for _ in range(3))
        for node_id, each in enumerate((leaver, killed, other), start=1):
            await each.join(node_id, f"d{node_id}")
        await leaver.leave()
        killed.abort()
        assert [member.node_id for member in other.members] == [2, 3]
        clock.advance(TIMEOUT_S - 0.1)
        assert await other.renew()
        clock.advance(0.1)
        assert [member.node_id for member in other.members] == [3]

    run(body())


def test_a_broker_that_is_cut_off_cannot_renew_and_learns_of_its_end_when_it_is_reachable() -> None:
    async def body() -> None:
        ensemble, clock = MemoryEnsemble(TIMEOUT_S), SimulatedClock()
        broker, other = tie(ensemble, clock), tie(ensemble, clock)
        await broker.join(1, "a")
        await other.join(2, "b")
        ensemble.cut(1)
        assert not await broker.renew()
        clock.advance(TIMEOUT_S - 1)
        assert await other.renew()
        clock.advance(1)
        assert [member.node_id for member in other.members] == [2]
        assert [member.node_id for member in broker.members] == [1, 2]
        ensemble.heal(1)
        assert [member.node_id for member in broker.members] == [2]

    run(body())


def test_a_renewal_counts_from_when_it_arrived_and_is_lost_if_its_answer_is() -> None:
    async def body() -> None:
        ensemble, clock, slow = MemoryEnsemble(TIMEOUT_S), SimulatedClock(), Slow()
        broker = tie(ensemble, clock, deliver=slow)
        await broker.join(1, "a")
        slow.deliver_all()
        renewal = asyncio.create_task(broker.renew())
        await asyncio.sleep(0)
        clock.advance(1)
        slow.deliver(1)
        broker.cut()
        slow.deliver_all()
        assert not await renewal
        clock.advance(TIMEOUT_S - 0.1)
        broker.heal()
        assert [member.node_id for member in broker.members] == [1]

    run(body())


def test_memberships_of_some_brokers_can_be_prolonged() -> None:
    async def body() -> None:
        ensemble, clock = MemoryEnsemble(), SimulatedClock()
        for node_id in (1, 2):
            await tie(ensemble, clock).join(node_id, f"d{node_id}")
        now_s = clock.monotonic()
        ensemble.prolong({2}, 10.0)
        for passed_s, left in ((ensemble.session_timeout_s, [2]), (10.0 + ensemble.session_timeout_s, [])):
            _, members = ensemble.members(now_s + passed_s)
            assert [each.node_id for each in members] == left

    run(body())
