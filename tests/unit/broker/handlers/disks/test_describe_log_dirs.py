from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from flowstone.cluster.image.cluster_image import PartitionImage
from flowstone.config import TopicConfig
from flowstone.errors import ErrorCode
from flowstone.log.manager import LogManager
from flowstone.ports.simulated_files import SimulatedFiles
from flowstone.replication.partition import Partition
from flowstone.types import TopicPartition
from flowstone.wire.messages import DescribeLogDirsRequest, DescribeLogDirsRequestTopic
from flowstone.wire.record_batch import Record, build_batch

BATCH = build_batch([Record(0, 1_700_000_000_000, None, b"v" * 100)])


def with_log_directory(
    broker: Any,
    files: SimulatedFiles,
    test: Callable[[], Coroutine[Any, Any, None]],
    *,
    before_append: Callable[[], None] = lambda: None,
    on_fault: Callable[[], None] = lambda: None,
) -> None:
    """Runs the test with two partitions of one batch and of none in a log directory."""

    async def run() -> None:
        services = broker.services
        services.logs = logs = LogManager(
            files,
            services.clock,
            services.config,
            on_flushed=lambda log: None,
            on_fault=lambda fault: on_fault(),
            high_watermark_of=lambda log: log.log_end_offset,
        )
        try:
            for index in range(2):
                log = logs.get_or_create(TopicPartition("a", index), b"a" * 16, TopicConfig())
                state = PartitionImage(leader=1, leader_epoch=0, partition_epoch=0, replicas=(1,), isr=(1,))
                services.partitions.add(Partition(log, logs.directories[0].flusher, state, node_id=1))
            before_append()
            services.partitions.get("a", 0).append(bytearray(BATCH), 1)
            await test()
        finally:
            logs.abort()

    asyncio.run(run())


@pytest.mark.parametrize("version", range(1, 6))
def test_every_partition_is_shown_with_its_size_and_the_space_there_is(make_broker: Any, version: int) -> None:
    broker = make_broker(log_dirs="/data")

    async def test() -> None:
        (directory,) = (await broker.ask(version, DescribeLogDirsRequest(topics=None))).results
        assert (directory.error_code, directory.log_dir) == (ErrorCode.NONE, "/data")
        (topic,) = directory.topics
        assert topic.name == "a"
        assert [(each.partition_index, each.partition_size) for each in topic.partitions] == [(0, len(BATCH)), (1, 0)]
        if version >= 4:
            assert 0 < directory.usable_bytes < directory.total_bytes

    with_log_directory(broker, SimulatedFiles(), test)


def test_only_the_partitions_asked_for_and_present_are_shown(make_broker: Any) -> None:
    broker = make_broker(log_dirs="/data")
    topics = [
        DescribeLogDirsRequestTopic(topic="a", partitions=[1, 9]),
        DescribeLogDirsRequestTopic(topic="no", partitions=[0]),
    ]

    async def test() -> None:
        (directory,) = (await broker.ask(4, DescribeLogDirsRequest(topics=topics))).results
        assert [[each.partition_index for each in topic.partitions] for topic in directory.topics] == [[1]]

    with_log_directory(broker, SimulatedFiles(), test)


def test_a_directory_that_failed_says_so(make_broker: Any) -> None:
    broker, files, failed = make_broker(log_dirs="/data"), SimulatedFiles(), asyncio.Event()

    async def test() -> None:
        await failed.wait()
        (directory,) = (await broker.ask(4, DescribeLogDirsRequest(topics=None))).results
        assert (directory.error_code, directory.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, [])

    with_log_directory(broker, files, test, on_fault=failed.set, before_append=lambda: files.fail_next("sync"))
