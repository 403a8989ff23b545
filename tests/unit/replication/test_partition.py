import errno
from collections.abc import Callable

import pytest

from flowstone.config import TopicConfig
from flowstone.errors import ApiError, ErrorCode, StorageFault
from flowstone.log.segments.cached_reads import LogSlice
from flowstone.replication.partition import ACKS_ALL, Partition
from flowstone.replication.readers import Reader
from tests.support.partitions import IN_PAGE_CACHE, ON_DISK, a_batch, a_partition, flush


class Watcher:
    def __init__(self) -> None:
        self.size_bytes = 0
        self.interruptions = 0

    def advanced(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes

    def interrupted(self) -> None:
        self.interruptions += 1


@pytest.fixture
def durable() -> Partition:
    return a_partition(ON_DISK)[0]


def read(partition: Partition) -> LogSlice | None:
    return partition.local.read_as(Reader.UNCOMMITTED, 0, 1000, at_least_one=True)


def test_nothing_is_visible_or_committed_before_it_is_on_disk(durable: Partition):
    codes: list[ErrorCode] = []
    appended = durable.append(a_batch(3), ACKS_ALL)
    durable.when_committed(appended.last_offset + 1, codes.append)
    assert read(durable) is None
    assert durable.high_watermark.offset == 0
    assert codes == []
    flush(durable)
    assert codes == [ErrorCode.NONE]
    assert durable.high_watermark.offset == 3
    visible = read(durable)
    assert visible is not None
    assert len(visible) == len(a_batch(3))


def test_one_flush_commits_everything_appended_before_it_in_order(durable: Partition):
    committed: list[int] = []
    for number in range(5):
        last = durable.append(a_batch(), ACKS_ALL).last_offset
        durable.when_committed(last + 1, lambda code, number=number: committed.append(number))
    flush(durable)
    assert committed == [0, 1, 2, 3, 4]


def test_what_was_appended_during_a_flush_waits_for_the_next(durable: Partition):
    codes: list[ErrorCode] = []
    durable.append(a_batch(), ACKS_ALL)
    task = durable.log.durability.take_dirty()
    assert task is not None
    last = durable.append(a_batch(), ACKS_ALL).last_offset
    durable.when_committed(last + 1, codes.append)
    task.run()
    durable.log.durability.flushed(task)
    durable.flushed()
    assert durable.high_watermark.offset == 1
    assert codes == []
    flush(durable)
    assert codes == [ErrorCode.NONE]


def test_every_append_requests_a_flush_whatever_its_acks():
    partition, flusher = a_partition(ON_DISK)
    for acks in (0, 1, ACKS_ALL):
        partition.append(a_batch(), acks)
    assert len(flusher.asked) == 3


def test_above_one_flush_message_nothing_waits_for_the_disk():
    partition, flusher = a_partition(IN_PAGE_CACHE)
    codes: list[ErrorCode] = []
    last = partition.append(a_batch(4), ACKS_ALL).last_offset
    partition.when_committed(last + 1, codes.append)
    assert codes == [ErrorCode.NONE]
    assert partition.high_watermark.offset == 4
    assert flusher.asked == []
    assert flusher.appended_records == 4


def test_a_change_to_the_page_cache_mode_releases_what_waited(durable: Partition):
    codes: list[ErrorCode] = []
    last = durable.append(a_batch(), ACKS_ALL).last_offset
    durable.when_committed(last + 1, codes.append)
    durable.log.configure(IN_PAGE_CACHE)
    durable.configured()
    assert codes == [ErrorCode.NONE]


def test_watchers_are_told_how_much_there_is_to_read(durable: Partition):
    watcher = Watcher()
    durable.local.watchers(Reader.UNCOMMITTED).watch(watcher)
    durable.append(a_batch(), 1)
    assert watcher.size_bytes == 0
    flush(durable)
    assert watcher.size_bytes == len(a_batch())
    durable.local.watchers(Reader.UNCOMMITTED).unwatch(watcher)
    durable.append(a_batch(), 1)
    flush(durable)
    assert watcher.size_bytes == len(a_batch())


def test_a_minimum_beyond_the_number_of_replicas_means_all_of_them():
    partition, _ = a_partition(TopicConfig(min_insync_replicas=2))
    assert partition.append(a_batch(), ACKS_ALL).base_offset == 0


def test_a_fault_answers_all_waiting_and_all_later_requests(durable: Partition):
    codes: list[ErrorCode] = []
    watcher = Watcher()
    durable.local.watchers(Reader.UNCOMMITTED).watch(watcher)
    last = durable.append(a_batch(), ACKS_ALL).last_offset
    durable.when_committed(last + 1, codes.append)
    durable.local.fail(StorageFault("the disk is gone"))
    assert codes == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert watcher.interruptions == 1
    for use in (lambda: durable.append(a_batch(), 1), lambda: read(durable)):
        with pytest.raises(ApiError) as refused:
            use()
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    durable.flushed()
    assert durable.high_watermark.offset == 0


def test_a_full_disk_is_logged_once_and_ends_by_itself(durable: Partition, caplog: pytest.LogCaptureFixture):
    durable.append(a_batch(), 1)
    durable.log.directory.files.fail_next("write", errno.ENOSPC, times=3)
    for _ in range(3):
        with pytest.raises(ApiError) as refused:
            durable.append(a_batch(), 1)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert durable.append(a_batch(), 1).base_offset == 1
    assert [record.message.split(": ")[0] for record in caplog.records] == [
        "partition t-0 accepts no records for now",
        "partition t-0 accepts records again",
    ]


def test_a_deleted_partition_answers_waiting_requests(durable: Partition):
    codes: list[ErrorCode] = []
    last = durable.append(a_batch(), ACKS_ALL).last_offset
    durable.when_committed(last + 1, codes.append)
    durable.close(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


@pytest.mark.parametrize(("epoch", "code"), [(2, ErrorCode.FENCED_LEADER_EPOCH), (4, ErrorCode.UNKNOWN_LEADER_EPOCH)])
def test_a_client_with_another_leader_epoch_is_fenced(durable: Partition, epoch: int, code: ErrorCode):
    durable.check_epoch(-1)
    durable.check_epoch(3)
    with pytest.raises(ApiError) as fenced:
        durable.check_epoch(epoch)
    assert fenced.value.code is code


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda it: it.local.fail(StorageFault("the disk is gone")), ErrorCode.KAFKA_STORAGE_ERROR),
        (lambda it: it.close(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
    ids=["offline", "deleted"],
)
def test_no_request_waits_for_a_partition_that_was_deleted(
    durable: Partition, end: Callable[[Partition], None], code: ErrorCode
):
    codes: list[ErrorCode] = []
    durable.append(a_batch(), 1)
    end(durable)
    durable.when_committed(1, codes.append)
    durable.local.when_flushed(1, codes.append)
    assert codes == [code, code]


def test_a_change_from_the_page_cache_mode_requests_the_flush_that_readers_wait_for():
    partition, flusher = a_partition(IN_PAGE_CACHE)
    partition.append(a_batch(), 1)
    flusher.asked.clear()
    partition.configured()
    assert flusher.asked == []
    partition.log.config = ON_DISK
    partition.configured()
    assert flusher.asked == [partition.log]
