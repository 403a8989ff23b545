from flowstone.cluster.image.cluster_image import PartitionImage
from flowstone.errors import StorageFault
from flowstone.replication.partition import Partition
from flowstone.replication.served_partitions import Partitions
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
