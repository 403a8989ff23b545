from collections.abc import Callable

import pytest

from flowstone.cluster.image.cluster_image import PartitionImage
from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.replication.partition import Partition
from flowstone.replication.served_partitions import Partitions
from flowstone.types import TopicPartition
from tests.support.partitions import ON_DISK, Flusher, a_batch, a_log, a_partition, flush

STATE = PartitionImage(leader=1, leader_epoch=0, partition_epoch=0, replicas=(1,), isr=(1,))


def test_a_log_that_nobody_is_served_from_has_the_high_watermark_that_was_stored():
    log, partitions = a_log(ON_DISK), Partitions()
    log.stored_high_watermark = 7
    assert partitions.high_watermark_of(log) == 7
    partitions.add(Partition(a_log(ON_DISK), Flusher(), STATE, 1))  # another log of that name
    assert partitions.high_watermark_of(log) == 7


def test_a_partitions_log_has_the_partitions_high_watermark():
    partition, _ = a_partition(ON_DISK)
    partitions = Partitions()
    partitions.add(partition)
    partition.append(a_batch(3), 1)
    flush(partition)
    assert partitions.high_watermark_of(partition.log) == 3


def test_a_failed_directory_fails_the_partitions_served_from_its_logs_and_no_others():
    partition, _ = a_partition(ON_DISK)
    partitions, fault = Partitions(), StorageFault("the disk is gone")
    partitions.fail([partition.log], fault)  # nobody is served from it
    partitions.add(partition)
    partitions.fail([a_log(ON_DISK)], fault)  # another log of that name
    assert partition.fault is None
    partitions.fail([partition.log], fault)
    assert partition.fault is fault


def test_the_number_of_partitions_is_known():
    partitions = Partitions()
    assert len(partitions) == 0
    partition, _ = a_partition(ON_DISK)
    partitions.add(partition)
    assert len(partitions) == 1


def code_of(asked: Callable[[], Partition]) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        asked()
    return refused.value.code


def test_a_partition_is_found_by_its_name_its_id_and_its_files():
    partition, _ = a_partition(ON_DISK)
    partitions = Partitions()
    partitions.add(partition)
    assert partitions.get("t", 0) is partition
    assert partitions.get_by_id(partition.topic_id, 0) is partition
    assert partitions.find(TopicPartition("t", 0)) is partition
    assert partitions.topic_name(partition.topic_id) == "t"
    assert list(partitions) == [partition]
    assert partitions.of_file(f"{partition.log.path}/00000000000000000000.log") is partition
    assert partitions.of_file(f"{partition.log.path}0/00000000000000000000.log") is None
    assert partitions.of_file(partition.log.path) is None


def test_what_is_not_served_has_an_error_for_clients():
    partition, _ = a_partition(ON_DISK)
    partitions = Partitions()
    partitions.add(partition)
    assert code_of(lambda: partitions.get("t", 1)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code_of(lambda: partitions.get("u", 0)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code_of(lambda: partitions.get_by_id(bytes(16), 0)) is ErrorCode.UNKNOWN_TOPIC_ID
    assert code_of(lambda: partitions.get_by_id(partition.topic_id, 1)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert partitions.find(TopicPartition("t", 1)) is partitions.find(TopicPartition("u", 0)) is None
    assert partitions.topic_name(bytes(16)) is None


def test_a_partition_whose_log_cannot_be_used_has_the_disks_error_until_it_is_removed():
    partitions, gone = Partitions(), TopicPartition("u", 0)
    partitions.add_offline(gone, bytes(16), StorageFault("the disk is gone"))
    assert code_of(lambda: partitions.get("u", 0)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert code_of(lambda: partitions.get_by_id(bytes(16), 0)) is ErrorCode.KAFKA_STORAGE_ERROR
    assert code_of(lambda: partitions.get("u", 1)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert len(partitions) == 0
    partitions.remove(gone, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert code_of(lambda: partitions.get("u", 0)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_is_known_as_long_as_one_of_its_partitions_is_served():
    first, _ = a_partition(ON_DISK)
    partitions = Partitions()
    partitions.add(first)
    partitions._by_name["t"][1] = first
    partitions.remove(TopicPartition("t", 2), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert len(partitions) == 2
    partitions.remove(TopicPartition("t", 1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert partitions.topic_name(first.topic_id) == "t"
    partitions.remove(TopicPartition("t", 0), ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert partitions.topic_name(first.topic_id) is None
    assert len(partitions) == 0
    partitions.remove(TopicPartition("t", 0), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def test_requests_that_wait_for_a_partition_are_answered_when_it_is_removed():
    partition, _ = a_partition(ON_DISK)
    partitions, told = Partitions(), list[ErrorCode]()
    partitions.add(partition)
    partition.append(a_batch(), -1)
    partition.when_committed(1, told.append)
    partitions.remove(TopicPartition("t", 0), ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_a_flush_commits_the_records_of_the_partition_served_from_that_log():
    partition, _ = a_partition(ON_DISK)
    partitions = Partitions()
    partitions.flushed(partition.log)  # nobody is served from it
    partitions.add(partition)
    partition.append(a_batch(), -1)
    task = partition.log.durability.take_dirty()
    assert task is not None
    task.run()
    partition.log.durability.flushed(task)
    partitions.flushed(a_log(ON_DISK))  # another log of that name
    assert partition.high_watermark.offset == 0
    partitions.flushed(partition.log)
    assert partition.high_watermark.offset == 1


def test_a_log_is_led_here_if_its_partition_is_served_from_it_by_the_leader():
    partition, _ = a_partition(ON_DISK)
    partitions = Partitions()
    assert not partitions.leads(partition.log)
    partitions.add(partition)
    assert partitions.leads(partition.log)
    assert not partitions.leads(a_log(ON_DISK))  # another log of that name
    following = Partition(a_log(ON_DISK), Flusher(), STATE, 2)
    partitions.add(following)
    assert not partitions.leads(following.log)
