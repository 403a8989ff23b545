import asyncio
from collections.abc import Awaitable, Callable

import pytest

from flowstone.broker.requests.parked import (
    FETCH_WAIT_MS_MAX,
    PARKED_PARTITIONS_MAX,
    ParkedFetch,
    ParkedProduce,
    Uncommitted,
    Waiting,
)
from flowstone.errors import ErrorCode
from flowstone.ports.clock import SimulatedClock
from flowstone.replication.partition import Partition
from flowstone.replication.readers import Reader
from flowstone.replication.waiters import Watchers
from tests.support.partitions import ON_DISK, a_batch, a_partition, flush


def consumers(partition: Partition) -> Watchers:
    return partition.local.watchers(Reader.UNCOMMITTED)


def run(scenario: Callable[[Waiting, SimulatedClock], Awaitable[None]]) -> None:
    async def main() -> None:
        clock = SimulatedClock()
        await scenario(Waiting(clock, parked_max=2), clock)

    asyncio.run(main())


def test_a_fetch_is_answered_when_there_is_enough_to_read():
    async def scenario(waiting: Waiting, clock: SimulatedClock) -> None:
        partition, _ = a_partition(ON_DISK)
        parked = ParkedFetch(waiting, [consumers(partition)], 2 * len(a_batch()), 1000, lambda: "response")
        partition.append(a_batch(), 1)
        flush(partition)
        assert not parked.done()
        partition.append(a_batch(), 1)
        flush(partition)
        assert await parked == "response"
        await asyncio.sleep(0)
        assert not waiting.fetches

    run(scenario)


def test_a_fetch_is_answered_when_its_time_is_up():
    async def scenario(waiting: Waiting, clock: SimulatedClock) -> None:
        partition, _ = a_partition(ON_DISK)
        parked = ParkedFetch(waiting, [consumers(partition)], 1, 500, lambda: "empty")
        clock.advance(0.4)
        assert not parked.done()
        clock.advance(0.2)
        assert await parked == "empty"

    run(scenario)


def test_fetches_of_share_groups_count_like_others():
    async def scenario(waiting: Waiting, clock: SimulatedClock) -> None:
        assert waiting.may_park_fetch(0)
        waiting.share_fetches.add(object())  # type: ignore[arg-type]
        assert not waiting.may_park_fetch(0)  # fetches may take half of the places
        assert not waiting.is_full

    run(scenario)


def test_a_cancelled_fetch_leaves_no_trace():
    async def scenario(waiting: Waiting, clock: SimulatedClock) -> None:
        partition, _ = a_partition(ON_DISK)
        parked = ParkedFetch(waiting, [consumers(partition)], 1, 500, lambda: "never")
        parked.cancel()
        await asyncio.sleep(0)
        assert not waiting.fetches
        partition.append(a_batch(), 1)
        flush(partition)
        clock.advance(1)

    run(scenario)


def test_a_fetch_that_cannot_be_read_fails_alone_and_not_who_woke_it():
    async def scenario(waiting: Waiting, clock: SimulatedClock) -> None:
        def fail() -> str:
            raise OSError("no descriptors")

        partition, _ = a_partition(ON_DISK)
        broken = ParkedFetch(waiting, [consumers(partition)], 1, 500, fail)
        sound = ParkedFetch(waiting, [consumers(partition)], 1, 500, lambda: "response")
        partition.append(a_batch(), 1)
        flush(partition)
        assert await sound == "response"
        with pytest.raises(OSError, match="no descriptors"):
            await broken

    run(scenario)


def test_a_fetch_that_must_read_from_disk_is_answered_after_that():
    async def scenario(waiting: Waiting, clock: SimulatedClock) -> None:
        async def slow() -> str:
            await asyncio.sleep(0)
            return "read"

        partition, _ = a_partition(ON_DISK)
        parked = ParkedFetch(waiting, [consumers(partition)], 1, 500, slow)
        clock.advance(1)
        clock.advance(1)
        assert await parked == "read"

    run(scenario)


def test_a_produce_is_answered_when_every_partition_has_committed():
    async def scenario(waiting: Waiting, clock: SimulatedClock) -> None:
        codes: list[ErrorCode] = []
        partitions = [a_partition(ON_DISK)[0] for _ in range(2)]
        uncommitted = [
            Uncommitted(
                partition, partition.append(a_batch(), -1).last_offset + 1, partition.leader_epoch, codes.append
            )
            for partition in partitions
        ]
        flush(partitions[0])
        parked = ParkedProduce(waiting, uncommitted, 1000, lambda: "stored")
        assert not parked.done()
        flush(partitions[1])
        assert await parked == "stored"
        await asyncio.sleep(0)
        assert codes == [], "no partition has failed"
        assert not waiting.produces

    run(scenario)


def test_a_produce_that_takes_too_long_says_so_and_ignores_what_comes_later():
    async def scenario(waiting: Waiting, clock: SimulatedClock) -> None:
        codes: list[ErrorCode] = []
        partition, _ = a_partition(ON_DISK)
        last = partition.append(a_batch(), -1).last_offset
        parked = ParkedProduce(
            waiting, [Uncommitted(partition, last + 1, partition.leader_epoch, codes.append)], 1000, lambda: "late"
        )
        clock.advance(2)
        assert await parked == "late"
        flush(partition)
        assert codes == [ErrorCode.REQUEST_TIMED_OUT]

    run(scenario)


def test_the_number_of_parked_requests_is_limited_and_known():
    async def scenario(waiting: Waiting, clock: SimulatedClock) -> None:
        partition, _ = a_partition(ON_DISK)
        first = ParkedFetch(waiting, [consumers(partition)], 1, 500, lambda: None)
        assert not waiting.is_full
        ParkedFetch(waiting, [consumers(partition)], 1, 500, lambda: None)
        assert waiting.is_full
        first.cancel()
        await asyncio.sleep(0)
        assert not waiting.is_full

    run(scenario)


def test_a_stopping_broker_answers_parked_fetches_at_once():
    async def scenario(waiting: Waiting, clock: SimulatedClock) -> None:
        partition, _ = a_partition(ON_DISK)
        parked = ParkedFetch(waiting, [consumers(partition)], 1, 500, lambda: "now")
        waiting.release_fetches()
        assert await parked == "now"

    run(scenario)


def test_fetches_may_take_half_of_the_places_and_produces_all_of_them():
    async def scenario(_: Waiting, clock: SimulatedClock) -> None:
        waiting = Waiting(clock, parked_max=3)
        partition, _ = a_partition(ON_DISK)
        fetches = [ParkedFetch(waiting, [consumers(partition)], 1, 500, lambda: "empty")]
        assert waiting.may_park_fetch(0)
        fetches.append(ParkedFetch(waiting, [consumers(partition)], 1, 500, lambda: "empty"))
        assert not waiting.may_park_fetch(0)
        assert not waiting.is_full
        last_offset = partition.append(a_batch(), -1).last_offset
        uncommitted = Uncommitted(partition, last_offset + 1, partition.leader_epoch, lambda error: None)
        produce = ParkedProduce(waiting, [uncommitted], 500, object)
        assert waiting.is_full
        fetches.pop().cancel()
        assert waiting.may_park_fetch(0)
        produce.cancel()

    run(scenario)


def test_partitions_of_parked_fetches_are_counted_until_they_are_answered():
    async def scenario(_: Waiting, clock: SimulatedClock) -> None:
        waiting = Waiting(clock, parked_max=10)
        parked = ParkedFetch(waiting, [], 1, 500, lambda: "empty", partition_count=PARKED_PARTITIONS_MAX - 10)
        assert waiting.may_park_fetch(10)
        assert not waiting.may_park_fetch(11)
        clock.advance(0.6)
        assert parked.done()
        assert waiting.may_park_fetch(PARKED_PARTITIONS_MAX)

    run(scenario)


@pytest.mark.parametrize(
    ("wait_ms", "answered_ms"), [(0, 0), (500, 500), (FETCH_WAIT_MS_MAX + 5000, FETCH_WAIT_MS_MAX)]
)
def test_a_fetch_waits_as_long_as_its_client_wants_up_to_a_limit(wait_ms: int, answered_ms: int):
    async def scenario(waiting: Waiting, clock: SimulatedClock) -> None:
        parked = ParkedFetch(waiting, [], 1, wait_ms, lambda: "empty")
        if answered_ms:
            clock.advance((answered_ms - 100) / 1000)
            assert not parked.done()
        clock.advance(0.2)
        assert parked.done()

    run(scenario)


def test_a_fetch_is_read_once_however_often_it_is_woken():
    async def scenario(waiting: Waiting, clock: SimulatedClock) -> None:
        read = []

        async def slowly() -> str:
            await asyncio.sleep(0)
            return "read"

        def again() -> object:
            read.append(1)
            return slowly()

        parked = ParkedFetch(waiting, [], 10, 500, again)
        parked.advanced(9)
        assert read == []
        parked.advanced(1)
        parked.advanced(1)
        parked.interrupted()
        assert read == [1]
        assert await parked == "read"
        parked.interrupted()
        assert read == [1]

    run(scenario)


def test_a_fetch_whose_read_from_disk_fails_is_answered_with_that():
    async def scenario(waiting: Waiting, clock: SimulatedClock) -> None:
        async def fail() -> str:
            raise OSError("the disk is gone")

        parked = ParkedFetch(waiting, [], 1, 500, fail)
        parked.interrupted()
        with pytest.raises(OSError, match="the disk is gone"):
            await parked

    run(scenario)


def test_a_fetch_that_is_cancelled_while_it_is_read_stays_cancelled():
    async def scenario(waiting: Waiting, clock: SimulatedClock) -> None:
        async def slow() -> str:
            await asyncio.sleep(0)
            return "read"

        parked = ParkedFetch(waiting, [], 1, 500, slow)
        parked.interrupted()
        parked.cancel()
        for _ in range(4):
            await asyncio.sleep(0)
        assert parked.cancelled()

    run(scenario)


def test_whom_a_stopping_broker_answers_includes_fetches_of_share_groups():
    class ShareFetch:
        interruptions = 0

        def interrupted(self) -> None:
            self.interruptions += 1

    async def scenario(waiting: Waiting, clock: SimulatedClock) -> None:
        share_fetch = ShareFetch()
        waiting.share_fetches.add(share_fetch)
        waiting.release_fetches()
        assert share_fetch.interruptions == 1

    run(scenario)


def test_each_partition_of_a_produce_that_fails_is_told_why_and_the_answer_waits_for_all():
    async def scenario(waiting: Waiting, clock: SimulatedClock) -> None:
        codes: dict[int, ErrorCode] = {}
        partitions = [a_partition(ON_DISK)[0] for _ in range(3)]
        uncommitted = [
            Uncommitted(
                partition,
                partition.append(a_batch(), -1).last_offset + 1,
                partition.leader_epoch,
                lambda code, at=at: codes.update({at: code}),  # type: ignore[misc]
            )
            for at, partition in enumerate(partitions)
        ]
        parked = ParkedProduce(waiting, uncommitted, 1000, lambda: "stored")
        partitions[1].close(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        flush(partitions[0])
        assert (parked.done(), codes) == (False, {1: ErrorCode.NOT_LEADER_OR_FOLLOWER})
        clock.advance(0.9)
        assert not parked.done()
        clock.advance(0.2)
        assert await parked == "stored"
        assert codes == {1: ErrorCode.NOT_LEADER_OR_FOLLOWER, 2: ErrorCode.REQUEST_TIMED_OUT}

    run(scenario)
