"""A partition as a coordinator sees it: on disk before it counts, and never silent about what will not come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from flowstone.broker.coordinators.internal_logs import PartitionInternalLog
from flowstone.broker.loop.workers import Workers
from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.replication.partition import Partition
from flowstone.wire.record_batch import parse_header
from tests.support.partitions import ON_DISK, a_batch, a_partition, flush
from tests.unit.replication.replicas import LEASE_S, ReplicaWorld

FAULT = StorageFault("the disk is gone")


@pytest.fixture
def workers() -> Iterator[Workers]:
    workers = Workers(1)
    yield workers
    workers.close()


@pytest.fixture
def partition() -> Partition:
    return a_partition(ON_DISK)[0]


@pytest.fixture
def log(partition: Partition, workers: Workers) -> PartitionInternalLog:
    return PartitionInternalLog(partition, workers)


def test_what_is_appended_is_committed_once_it_is_on_disk(log: PartitionInternalLog, partition: Partition) -> None:
    told: list[ErrorCode] = []
    assert log.append(a_batch(3)) == 3
    log.when_committed(told.append)
    assert (told, log.is_committed) == ([], False)
    flush(partition)
    assert (told, log.is_committed) == ([ErrorCode.NONE], True)


def test_what_waits_for_a_commit_hears_that_the_disk_failed(log: PartitionInternalLog, partition: Partition) -> None:
    told: list[ErrorCode] = []
    log.append(a_batch())
    log.when_committed(told.append)
    partition.local.fail(FAULT)
    assert told == [ErrorCode.KAFKA_STORAGE_ERROR]


def test_nobody_waits_for_a_partition_that_has_failed(log: PartitionInternalLog, partition: Partition) -> None:
    told: list[ErrorCode] = []
    log.append(a_batch())
    partition.local.fail(FAULT)
    log.when_committed(told.append)
    assert (told, log.is_committed) == ([ErrorCode.KAFKA_STORAGE_ERROR], False)
    with pytest.raises(ApiError):
        log.append(a_batch())


def test_only_what_is_committed_is_read(log: PartitionInternalLog, partition: Partition) -> None:
    log.append(a_batch(2))
    flush(partition)
    log.append(a_batch())
    data = asyncio.run(log.read(0, 1 << 20))
    assert parse_header(data).size_bytes == len(data)
    assert asyncio.run(log.read(2, 1 << 20)) == b""


def test_a_read_gives_at_least_one_whole_batch(log: PartitionInternalLog, partition: Partition) -> None:
    log.append(a_batch(5))
    flush(partition)
    data = asyncio.run(log.read(0, 1))
    assert parse_header(data).size_bytes == len(data)


def test_a_partition_that_has_failed_cannot_be_read(log: PartitionInternalLog, partition: Partition) -> None:
    partition.local.fail(FAULT)
    with pytest.raises(ApiError) as refused:
        asyncio.run(log.read(0, 1))
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_coordinator_without_a_lease_answers_not_even_what_was_committed_before(workers: Workers) -> None:
    """There may be another one by now, who knows of later commits."""
    world, told = ReplicaWorld(), list[ErrorCode]()
    log = PartitionInternalLog(world.partition, workers)
    log.when_committed(told.append)
    assert log.is_committed
    world.clock.advance(LEASE_S)
    log.when_committed(told.append)
    assert told == [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert not log.is_committed


def test_a_coordinator_that_has_its_lease_again_answers_again(workers: Workers) -> None:
    world, told = ReplicaWorld(), list[ErrorCode]()
    log = PartitionInternalLog(world.partition, workers)
    world.clock.advance(LEASE_S)
    world.lease.extend(world.clock.monotonic() + LEASE_S)
    log.when_committed(told.append)
    assert told == [ErrorCode.NONE]
