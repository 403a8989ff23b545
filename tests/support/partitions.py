"""Partitions over simulated files, for tests: nothing is flushed unless a test says so."""

from __future__ import annotations

from flowstone.cluster.image.cluster_image import PartitionImage
from flowstone.config import LONG_MAX, TopicConfig
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.segments.file_handles import FileHandles
from flowstone.log.segments.partition_directory import PartitionDirectory
from flowstone.ports.clock import SimulatedClock
from flowstone.ports.simulated_files import SimulatedFiles
from flowstone.replication.partition import Partition
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import Record, build_batch

ON_DISK = TopicConfig()
IN_PAGE_CACHE = TopicConfig(flush_messages=LONG_MAX)


class Flusher:
    """Flushes when told to."""

    def __init__(self) -> None:
        self.asked: list[PartitionLog] = []
        self.appended_records = 0

    def request(self, log: PartitionLog) -> None:
        self.asked.append(log)

    def appended(self, log: PartitionLog, record_count: int) -> None:
        self.appended_records += record_count


def a_log(config: TopicConfig) -> PartitionLog:
    files = SimulatedFiles()
    files.make_directory("/data")
    return PartitionLog(
        TopicPartition("t", 0),
        bytes(range(16)),
        config,
        SimulatedClock(),
        FileHandles(files, 16),
        PartitionDirectory(files, "/data/t-0", exists=False),
    )


def a_partition(config: TopicConfig) -> tuple[Partition, Flusher]:
    log, flusher = a_log(config), Flusher()
    state = PartitionImage(leader=1, leader_epoch=3, partition_epoch=0, replicas=(1,), isr=(1,))
    return Partition(log, flusher, state, node_id=1), flusher


def flush(partition: Partition) -> None:
    task = partition.log.durability.take_dirty()
    assert task is not None
    task.run()
    partition.log.durability.flushed(task)
    partition.flushed()


def a_batch(count: int = 1) -> bytes:
    now = SimulatedClock().time_ms()
    return build_batch([Record(number, now, b"k", b"v" * 10) for number in range(count)])
