"""The queues of producers whose batches wait for the transaction coordinator, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from flowstone.broker.requests.transaction_verification import MarkerGuard, ProducedTransaction, TransactionVerification
from flowstone.cluster.image.cluster_image import PartitionImage
from flowstone.errors import ApiError, ErrorCode
from flowstone.ports.clock import SystemClock
from flowstone.replication.partition import Partition
from flowstone.types import Bytes
from flowstone.wire.end_markers import end_marker
from tests.support.partitions import IN_PAGE_CACHE, a_partition
from tests.support.transactional_topic import HeldCoordinator, transactional_batch

PID, OTHER = 7, 8
V1, V2 = 11, 12
STATE = PartitionImage(leader=1, leader_epoch=4, partition_epoch=1, replicas=(1,), isr=(1,))


def transaction(coordinator: HeldCoordinator, version: int = V1) -> ProducedTransaction:
    found = ProducedTransaction(TransactionVerification(SystemClock()), coordinator, "id", version)
    found.note(transactional_batch(b"v", PID))
    return found


async def batches(*found: tuple[Partition, Bytes]) -> AsyncIterator[tuple[Partition, Bytes]]:
    for each in found:
        yield each


def code_for(transaction: ProducedTransaction, partition: Partition) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        transaction.version_for(partition, transactional_batch(b"v", PID))
    return refused.value.code


@pytest.mark.parametrize(("version", "transaction_version"), [(3, 1), (V1, 1), (V2, 2)])
def test_the_requests_version_is_that_of_the_transaction(version: int, transaction_version: int) -> None:
    async def scenario() -> None:
        partition, _ = a_partition(IN_PAGE_CACHE)
        batch, asked = transactional_batch(b"v", PID), transaction(HeldCoordinator(), version)
        async with asked.turn():
            await asked.verify(batches((partition, batch)))
            assert asked.version_for(partition, batch) == transaction_version

    asyncio.run(scenario())


def test_an_answer_of_another_leader_epoch_is_not_used() -> None:
    async def scenario() -> None:
        partition, _ = a_partition(IN_PAGE_CACHE)
        asked = transaction(HeldCoordinator())
        async with asked.turn():
            await asked.verify(batches((partition, transactional_batch(b"v", PID))))
            partition.update(STATE, 1)
            assert code_for(asked, partition) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    asyncio.run(scenario())


def test_a_batch_for_another_leader_is_told_so_and_not_that_its_transaction_has_ended() -> None:
    async def scenario() -> None:
        partition, _ = a_partition(IN_PAGE_CACHE)
        partition.update(STATE, 2)
        asked = transaction(HeldCoordinator())
        async with asked.turn():
            await asked.verify(batches())
            assert code_for(asked, partition) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    asyncio.run(scenario())


def test_an_answer_is_not_used_after_the_turn() -> None:
    async def scenario() -> None:
        partition, _ = a_partition(IN_PAGE_CACHE)
        asked = transaction(HeldCoordinator())
        async with asked.turn():
            await asked.verify(batches((partition, transactional_batch(b"v", PID))))
        assert code_for(asked, partition) is ErrorCode.INVALID_TXN_STATE
        assert partition.log.producers.on_marker == {}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("is_second_protocol", "marker_epoch", "is_stale"),
    [(False, 3, True), (False, 4, True), (True, 3, False), (True, 4, True)],
)
def test_a_marker_makes_a_guard_stale_unless_it_ends_the_transaction_before(
    is_second_protocol: bool, marker_epoch: int, is_stale: bool
) -> None:
    partition, _ = a_partition(IN_PAGE_CACHE)
    guard = MarkerGuard(partition, PID, 3, is_second_protocol=is_second_protocol)
    for producer_id in (OTHER, PID):
        assert not guard.is_stale
        partition.append(end_marker(producer_id, marker_epoch, 1, True, 0), 1, is_own=True, transaction_version=2)
    assert guard.is_stale is is_stale


def test_a_coordinator_that_raises_refuses_every_partition() -> None:
    class Gone(HeldCoordinator):
        async def add_or_verify(self, *args: object, verify_only: bool) -> dict[object, ErrorCode]:  # type: ignore[override]
            raise ApiError(ErrorCode.NOT_COORDINATOR)

    async def scenario() -> None:
        partition, _ = a_partition(IN_PAGE_CACHE)
        asked = transaction(Gone())
        async with asked.turn():
            await asked.verify(batches((partition, transactional_batch(b"v", PID))))
            assert code_for(asked, partition) is ErrorCode.NOT_ENOUGH_REPLICAS

    asyncio.run(scenario())


def test_requests_of_a_producer_have_their_turns_in_order_and_others_do_not_wait() -> None:
    async def scenario() -> None:
        verification = TransactionVerification(SystemClock())
        order: list[str] = []
        first_may_end = asyncio.Event()

        async def request(name: str, producer_id: int, until: asyncio.Event | None = None) -> None:
            async with verification.turn(producer_id):
                if until is not None:
                    await until.wait()
                order.append(name)

        until = {"a": first_may_end}
        waiting = [asyncio.ensure_future(request(name, PID, until.get(name))) for name in ("a", "b", "c")]
        await asyncio.sleep(0)
        await request("other", OTHER)
        assert (order, verification.is_busy(PID), verification.is_busy(OTHER)) == (["other"], True, False)
        first_may_end.set()
        await asyncio.gather(*waiting)
        assert (order, verification.is_busy(PID)) == (["other", "a", "b", "c"], False)

    asyncio.run(scenario())


def test_a_producer_that_holds_much_is_refused_before_one_that_holds_little() -> None:
    verification = TransactionVerification(SystemClock(), held_bytes_max=1000)
    verification.hold(PID, 400)
    with pytest.raises(ApiError) as refused:
        verification.hold(PID, 200)
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    verification.hold(OTHER, 200)
    verification.release(PID, 400)
    verification.release(OTHER, 200)
    assert verification.held_bytes == 0


def test_one_request_alone_may_hold_more_than_the_limit() -> None:
    verification = TransactionVerification(SystemClock(), held_bytes_max=1000)
    verification.hold(PID, 5000)
    with pytest.raises(ApiError):
        verification.hold(OTHER, 1)
    verification.release(PID, 5000)
    assert verification.held_bytes == 0
