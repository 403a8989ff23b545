"""Deletion of logs and of their records: what goes at once, what goes later, and what a start finds of it."""

from __future__ import annotations

import asyncio
import errno
import threading

import pytest

from flowstone.errors import ApiError, StorageFault
from flowstone.types import TopicPartition
from tests.support.managed_logs import FIRST, OTHER_ID, SECOND, TOPIC_ID, Broker, broker, run

__all__ = ["broker"]


def test_a_deleted_partition_is_removed_at_once_and_its_files_later(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        broker.append(broker.log())
        broker.logs.delete(FIRST)
        assert [name.endswith("-delete") for name in broker.names() if name.startswith("first")] == [True]
        broker.clock.advance(61)
        await broker.settle()
        assert not [name for name in broker.names() if name.startswith("first")]
        broker.logs.close()

    run(body)


def test_a_topic_made_again_begins_at_zero_and_survives_a_crash(broker: Broker) -> None:
    """Its name stood in the checkpoints with the old topic's offsets."""

    async def body() -> None:
        broker.open()
        for _ in range(50):
            broker.append(broker.log())
        await broker.flush(broker.log())
        await broker.logs.directories[0].housekeeping.checkpoint()
        broker.logs.delete(FIRST)
        await broker.logs.wait_forgotten()
        log = broker.log(topic_id=OTHER_ID)
        assert broker.append(log) == 0
        await broker.flush(log)
        broker.logs.abort()
        broker.files.lose_power()
        broker.open()
        assert broker.log(topic_id=OTHER_ID).log_end_offset == 1
        broker.logs.close()

    run(body)


def test_a_deletion_does_not_wait_for_the_disk_and_leaves_nothing_to_remember(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        broker.append(broker.log())
        worker_is_free = threading.Event()
        broker.logs.directories[0].housekeeping.in_background(lambda: worker_is_free.wait(10) and None)
        broker.logs.delete(FIRST)
        freed = broker.logs.free_name(FIRST, OTHER_ID)
        assert freed is not None
        await asyncio.sleep(0)
        assert not freed.done()
        worker_is_free.set()
        await asyncio.wait_for(freed, 10)
        assert broker.logs.free_name(FIRST, OTHER_ID) is None
        assert broker.append(broker.log(topic_id=OTHER_ID)) == 0
        broker.logs.close()

    run(body)


def test_deletions_of_one_turn_of_the_loop_share_a_checkpoint(broker: Broker) -> None:
    async def body() -> None:
        logs = broker.open()
        topic_partitions = [TopicPartition("many", index) for index in range(20)]
        for topic_partition in topic_partitions:
            broker.append(broker.log(topic_partition))
        for topic_partition in topic_partitions:
            logs.delete(topic_partition)
        assert len({logs.free_name(topic_partition, OTHER_ID) for topic_partition in topic_partitions}) == 1
        logs.close()

    run(body)


def test_a_partition_that_cannot_be_deleted_keeps_its_name_taken(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        broker.append(broker.log(), 5)
        broker.files.fail_next("rename", times=2)
        with pytest.raises(StorageFault, match="cannot be deleted"):
            broker.logs.delete(FIRST)
        with pytest.raises(StorageFault, match="cannot be deleted"):
            broker.logs.free_name(FIRST, OTHER_ID)
        freed = broker.logs.free_name(FIRST, OTHER_ID)  # the disk is well again
        assert freed is not None
        await freed
        assert broker.log(topic_id=OTHER_ID).log_end_offset == 0
        broker.logs.close()

    run(body)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_the_next_start_removes_what_a_crash_left_of_a_deleted_topic(broker: Broker, is_damaged: bool) -> None:
    async def body() -> None:
        broker.open()
        broker.append(broker.log(FIRST, TOPIC_ID))
        broker.append(broker.log(SECOND, OTHER_ID))
        broker.logs.close()
        if is_damaged:
            broker.files.remove("/data/first-0/00000000000000000000.log")
        broker.open().delete_strays({OTHER_ID})
        assert list(broker.logs.logs) == [SECOND]
        assert not broker.logs.offline
        await broker.logs.wait_forgotten()
        assert [name.endswith("-delete") for name in broker.names() if name.startswith("first")] == [True]
        broker.clock.advance(61)
        await broker.settle()
        assert not [name for name in broker.names() if name.startswith("first")]
        broker.logs.close()

    run(body)


def test_a_log_that_does_not_say_whose_it_is_is_no_stray(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        broker.append(broker.log())
        broker.logs.close()
        broker.files.remove("/data/first-0/partition.metadata")
        broker.open().delete_strays(set())
        assert list(broker.logs.logs) == [FIRST]
        broker.logs.close()

    run(body)


def test_what_an_earlier_topic_of_that_name_left_is_never_used(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        broker.append(broker.log(), 5)
        broker.logs.close()
        broker.open()
        freed = broker.logs.free_name(FIRST, OTHER_ID)
        assert freed is not None
        await freed
        assert broker.log(topic_id=OTHER_ID).log_end_offset == 0
        broker.logs.close()

    run(body)


def test_a_log_whose_topic_id_was_lost_gets_it_back(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        broker.append(broker.log(), 5)
        broker.logs.close()
        broker.files.remove("/data/first-0/partition.metadata")
        broker.open()
        assert broker.log().log_end_offset == 5
        broker.logs.close()
        broker.open()
        assert broker.logs.logs[FIRST].topic_id == TOPIC_ID
        broker.logs.close()

    run(body)


def test_leftovers_of_deleted_partitions_go_at_the_next_start(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        broker.append(broker.log())
        broker.logs.delete(FIRST)
        broker.logs.close()
        broker.open()
        await broker.settle()
        assert not [name for name in broker.names() if name.startswith("first")]
        broker.logs.close()

    run(body)


def test_deleted_records_are_gone_for_good_when_the_call_returns(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        log = broker.log()
        for _ in range(50):
            broker.append(log)
        await broker.flush(log)
        await broker.logs.delete_records_before(log, 33)
        broker.logs.abort()
        broker.files.lose_power()
        broker.open()
        assert broker.logs.logs[FIRST].log_start_offset == 33
        broker.logs.close()

    run(body)


@pytest.mark.parametrize(("operation", "error"), [("write", errno.ENOSPC), ("sync", errno.EIO), ("rename", errno.EIO)])
def test_deleting_records_without_a_checkpoint_fails_the_call_and_not_the_log(
    broker: Broker, operation: str, error: int
) -> None:
    async def body() -> None:
        broker.open()
        broker.append(broker.log())
        await broker.settle()
        broker.files.fail_next(operation, error, times=2)
        with pytest.raises(ApiError, match="checkpoints cannot be written"):
            await broker.logs.delete_records_before(broker.log(), 1)
        await broker.logs.delete_records_before(broker.log(), 1)
        broker.logs.close()

    run(body)


def test_a_topic_whose_directory_was_removed_by_hand_can_be_deleted_and_created_again(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        broker.append(broker.log())
        broker.files.remove_tree("/data/first-0")
        broker.logs.delete(FIRST)
        await broker.logs.wait_forgotten()
        assert broker.append(broker.log(topic_id=OTHER_ID)) == 0
        broker.logs.close()

    run(body)


def test_a_deleted_partition_is_not_missing(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        broker.append(broker.log())
        await broker.flush(broker.log())
        broker.clock.advance(1.1)
        await broker.settle()
        broker.logs.delete(FIRST)
        broker.logs.abort()
        broker.open()
        assert not broker.logs.offline
        broker.logs.close()

    run(body)


def test_whoever_waits_for_a_name_is_not_cancelled_with_a_move_that_waits_for_it(broker: Broker) -> None:
    async def body() -> None:
        broker.open()
        broker.append(broker.log())
        directory = broker.logs.directories[0]
        moved = asyncio.ensure_future(directory.forget_moved(FIRST))
        await asyncio.sleep(0)
        waiting = directory.forgetting(FIRST)
        assert waiting is not None
        moved.cancel()
        await asyncio.wait_for(waiting, 10)
        assert directory.forgetting(FIRST) is None
        broker.logs.abort()

    run(body)
