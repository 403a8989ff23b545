"""Branches of one log: what they take, what they share, and that neither side ever shows in the other."""

from __future__ import annotations

import errno

import pytest

from flowstone.errors import ApiError
from flowstone.log.branching import staging as branch_staging
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.segments.branch_point import branch_point_name, read_branch_point
from flowstone.log.segments.sparse_index import OFFSET_ENTRY
from flowstone.ports.simulated_files import SimulatedFiles
from flowstone.types import TopicPartition
from flowstone.wire.compression import Codec
from flowstone.wire.record_batch import Record, build_batch
from tests.support.branched_logs import (
    BRANCH,
    BRANCH_ID,
    CONFIG,
    SOURCE,
    SOURCE_ID,
    START_MS,
    Directory,
    append,
    fill,
    flush,
    scenario,
    stored,
)


@pytest.fixture
def directory() -> Directory:
    return Directory()


@scenario
async def test_a_branch_holds_the_records_of_its_source(directory: Directory) -> None:
    fill(directory.source, 20)
    branch = await directory.branch()
    assert stored(branch) == stored(directory.source)
    assert branch.log_end_offset == directory.source.log_end_offset == 60


@scenario
async def test_whole_segments_are_linked_with_their_indexes_and_nothing_is_copied(directory: Directory) -> None:
    fill(directory.source, 20)
    directory.source.roll()
    staged = await directory.logs.branches.stage([(directory.source, 60)], BRANCH.topic, BRANCH_ID)
    assert staged[0].built.copied_bytes == 0
    handles = [handle for segment in directory.source.segments[:-1] for handle in segment.handles]
    assert staged[0].built.linked_bytes == sum(directory.files.size(handle.path) for handle in handles)
    for segment in directory.source.segments[:-1]:
        for handle in segment.handles:
            assert directory.files.link_count(handle.path) == 2


@scenario
async def test_writes_to_either_side_never_show_in_the_other(directory: Directory) -> None:
    fill(directory.source, 5)
    branch = await directory.branch()
    append(directory.source, [b"source only"])
    append(branch, [b"branch only"])
    assert stored(directory.source)[-1].value == b"source only"
    assert stored(branch)[-1].value == b"branch only"


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("end_offset", range(31))
def test_a_branch_may_end_at_any_offset_also_amid_a_batch(codec: Codec, end_offset: int) -> None:
    async def check(directory: Directory) -> None:
        fill(directory.source, 10, codec=codec)
        if end_offset == 30:
            directory.source.roll()
        branch = await directory.branch(end_offset)
        assert stored(branch) == stored(directory.source)[:end_offset]
        assert branch.log_end_offset == end_offset
        directory.restart(lose_power=True)
        assert stored(directory.branch_log) == stored(directory.source)[:end_offset]

    scenario(check)(Directory())


@scenario
async def test_only_the_segment_of_the_end_is_copied(directory: Directory) -> None:
    fill(directory.source, 20)
    staged = await directory.logs.branches.stage([(directory.source, 31)], BRANCH.topic, BRANCH_ID)
    sizes = [segment.size_bytes for segment in directory.source.segments]
    assert 0 < staged[0].built.copied_bytes <= max(sizes)


@scenario
async def test_the_copied_segment_is_indexed_as_recovery_would(directory: Directory) -> None:
    fill(directory.source, 20)
    branch = await directory.branch(31)
    copied = branch.segments[-2]
    fresh = copied.rebuild(copied.log.get(), copied.size_bytes)
    assert directory.files.read(copied.indexes.offset_handle.path) == fresh.indexes.offsets.encode()  # type: ignore[union-attr]
    assert directory.files.read(copied.indexes.time_handle.path) == fresh.indexes.times.encode()  # type: ignore[union-attr]


@scenario
async def test_damaged_index_files_of_the_source_do_not_reach_the_copy(directory: Directory) -> None:
    fill(directory.source, 20)
    sealed = directory.source.segments[0]
    index = directory.files.open(sealed.indexes.offset_handle.path)
    index.write(0, [b"\x00\x00\x00\x01\x00\x00\x00\x07"])
    branch = await directory.branch(sealed.next_offset - 1 if sealed.next_offset > 0 else 4)
    assert stored(branch) == stored(directory.source)[: branch.log_end_offset]


@scenario
async def test_index_entries_of_the_source_that_point_beside_its_batches_are_made_again(directory: Directory) -> None:
    fill(directory.source, 20)
    index = directory.files.open(directory.source.segments[0].indexes.offset_handle.path)
    entries = [(offset, position + 1) for offset, position in OFFSET_ENTRY.iter_unpack(index.read(0, index.size()))]
    index.write(0, [b"".join(OFFSET_ENTRY.pack(*entry) for entry in entries)])
    branch = await directory.branch(directory.source.segments[1].base_offset - 1)
    copied = branch.segments[0]
    fresh = copied.rebuild(copied.log.get(), copied.size_bytes)
    assert directory.files.read(copied.indexes.offset_handle.path) == fresh.indexes.offsets.encode()  # type: ignore[union-attr]


@scenario
async def test_truncating_one_side_leaves_the_other_whole(directory: Directory) -> None:
    fill(directory.source, 20)
    branch = await directory.branch()
    before = stored(branch)
    await directory.logs.truncate_to(directory.source, 10)
    assert stored(branch) == before
    append(directory.source, [b"new"])
    assert stored(branch) == before
    await directory.logs.truncate_to(branch, 20)
    append(branch, [b"other"])
    assert [each.value for each in stored(directory.source)][-1] == b"new"
    assert stored(branch)[:-1] == before[:18]


@scenario
async def test_indexes_written_anew_on_one_side_leave_the_others_as_they_are(directory: Directory) -> None:
    fill(directory.source, 20)
    branch = await directory.branch()
    paths = [handle.path for segment in branch.segments[:-1] for handle in segment.handles]
    before = [directory.files.read(path) for path in paths]
    await directory.logs.truncate_to(directory.source, 4)
    directory.source.roll()
    assert [directory.files.read(path) for path in paths] == before


@scenario
async def test_recovery_copies_a_shared_file_before_it_cuts_it(directory: Directory) -> None:
    fill(directory.source, 20)
    branch = await directory.branch()
    last = branch.segments[-2]
    # Nothing counts as durable any more, and the last batch that both have is damaged: it looks like a torn write.
    for name in ("recovery-point-offset-checkpoint", ".flowstone-log-extents"):
        directory.files.remove(f"/data/{name}")
    directory.files.open(last.log.path).write(last.size_bytes - 1, [b"?"])
    directory.restart()
    cut = [directory.source.segments.active, directory.branch_log.segments.active]
    assert cut[0].size_bytes == cut[1].size_bytes < last.size_bytes
    assert [directory.files.link_count(each.log.path) for each in cut] == [1, 1]


@scenario
async def test_retention_on_one_side_only_removes_its_own_names(directory: Directory) -> None:
    fill(directory.source, 20)
    branch = await directory.branch()
    before = stored(branch)
    await directory.logs.delete_records_before(directory.source, 40)
    assert stored(branch) == before
    assert stored(directory.source) == before[40:]


@scenario
async def test_deleted_records_of_the_source_do_not_come_back_in_the_branch(directory: Directory) -> None:
    fill(directory.source, 5, records=10)
    await directory.logs.delete_records_before(directory.source, 7)
    branch = await directory.branch()
    assert branch.log_start_offset == 7
    directory.restart(lose_power=True)
    assert directory.branch_log.log_start_offset == 7


@scenario
async def test_a_branch_of_a_branch_survives_both_its_ancestors(directory: Directory) -> None:
    fill(directory.source, 20)
    branch = await directory.branch()
    before = stored(branch)
    other = TopicPartition("third", 0)
    branch.roll() if branch.segments.active.size_bytes else None
    staged = await directory.logs.branches.stage([(branch, 60)], other.topic, b"3" * 16)
    await directory.logs.branches.install(staged)
    directory.logs.delete(SOURCE)
    directory.logs.delete(BRANCH)
    assert stored(directory.logs.logs[other]) == before


@scenario
async def test_a_branch_knows_no_producer_for_sequences_are_counted_per_topic(directory: Directory) -> None:
    producer = {"producer_id": 7, "producer_epoch": 0}
    append(directory.source, [b"a"], base_sequence=0, **producer)
    append(directory.source, [b"b"], base_sequence=1, **producer)
    flush(directory.source)
    branch = await directory.branch()
    append(branch, [b"first of the same producer here"], base_sequence=0, **producer)
    assert branch.log_end_offset == 3


@scenario
async def test_nor_does_it_after_a_restart_without_any_snapshot(directory: Directory) -> None:
    producer = {"producer_id": 7, "producer_epoch": 0}
    append(directory.source, [b"a"], base_sequence=0, **producer)
    flush(directory.source)
    await directory.branch()
    directory.restart(lose_power=True)
    branch = directory.branch_log
    assert len(branch.producers) == 0
    append(branch, [b"b"], base_sequence=0, **producer)
    append(branch, [b"c"], base_sequence=1, **producer)
    flush(branch)
    directory.restart()
    assert directory.branch_log.producers.get(7) is not None
    assert stored(directory.branch_log)[-1].value == b"c"


@scenario
async def test_a_truncation_below_the_branch_point_moves_it(directory: Directory) -> None:
    fill(directory.source, 5)
    branch = await directory.branch()
    await directory.logs.truncate_to(branch, 6)
    flush(branch)
    point = read_branch_point(directory.files, branch.path, directory.files.names(branch.path))
    assert point is not None
    assert point.offset == 6


@scenario
async def test_a_branch_of_an_empty_log_needs_no_directory(directory: Directory) -> None:
    staged = await directory.logs.branches.stage([(directory.source, 0)], BRANCH.topic, BRANCH_ID)
    assert staged == []


@scenario
async def test_a_branch_at_the_log_start_is_empty_and_continues_there(directory: Directory) -> None:
    fill(directory.source, 5)
    await directory.logs.delete_records_before(directory.source, 5)
    branch = await directory.branch(5)
    assert (branch.log_start_offset, branch.log_end_offset) == (5, 5)
    append(branch, [b"x"])
    assert stored(branch)[0].offset == 5


@scenario
async def test_the_next_start_removes_what_was_staged_and_never_installed(directory: Directory) -> None:
    fill(directory.source, 5)
    await directory.logs.branches.stage([(directory.source, 6)], BRANCH.topic, BRANCH_ID)
    assert any(name.endswith("-staged") for name in directory.names())
    directory.restart()
    await directory.settle()
    assert not any(name.endswith("-staged") for name in directory.names())
    assert BRANCH not in directory.logs.logs


@scenario
async def test_a_file_system_that_does_not_link_has_the_segments_copied(directory: Directory) -> None:
    fill(directory.source, 5)
    directory.files.fail_next("link", errno.EMLINK, times=1000)
    branch = await directory.branch()
    assert stored(branch) == stored(directory.source)
    assert directory.files.link_count(branch.segments[0].log.path) == 1


@scenario
async def test_a_full_disk_leaves_no_branch_and_a_sound_source(directory: Directory) -> None:
    fill(directory.source, 5)
    directory.files.fail_next("write", errno.ENOSPC)
    with pytest.raises(ApiError, match="KAFKA_STORAGE_ERROR"):
        await directory.branch(4)
    await directory.settle()
    assert directory.names() == [name for name in directory.names() if "orders-dev" not in name]
    assert directory.faults == []
    assert len(stored(directory.source)) == 15


@scenario
async def test_a_failed_sync_fails_the_log_directory(directory: Directory) -> None:
    append(directory.source, [b"not flushed"])
    directory.source.roll()
    directory.files.fail_next("sync", errno.EIO)
    with pytest.raises(ApiError, match="KAFKA_STORAGE_ERROR"):
        await directory.branch(1)
    assert len(directory.faults) == 1


# Many partitions


class WideDirectory(Directory):
    """A topic of several partitions, on a file system of its own."""

    partitions = [TopicPartition(SOURCE.topic, number) for number in range(4)]

    def logs_of(self, topic: str, topic_id: bytes) -> list[PartitionLog]:
        return [
            self.logs.get_or_create(TopicPartition(topic, number), topic_id, CONFIG)
            for number in range(len(self.partitions))
        ]

    async def branch_all(self) -> None:
        sources = []
        for log in self.logs_of(SOURCE.topic, SOURCE_ID):
            fill(log, 3)
            log.roll()
            sources.append((log, log.log_end_offset))
        staged = await self.logs.branches.stage(sources, BRANCH.topic, BRANCH_ID)
        await self.logs.branches.install(staged)
        await self.settle()


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> WideDirectory:
    monkeypatch.setattr(SimulatedFiles, "is_own_filesystem", lambda _files, _path: True)
    monkeypatch.setattr(branch_staging, "SYNCFS_LOGS", 4)
    monkeypatch.setattr(branch_staging, "LOGS_AT_ONCE", 4)
    return WideDirectory()


def test_partitions_of_a_branch_share_the_files_that_they_have_alike(wide: WideDirectory) -> None:
    @scenario
    async def run(wide: WideDirectory) -> None:
        await wide.branch_all()
        for log in wide.logs_of(BRANCH.topic, BRANCH_ID):
            point = f"{log.path}/{branch_point_name(log.log_end_offset)}"
            assert wide.files.link_count(f"{log.path}/partition.metadata") == len(wide.partitions)
            assert wide.files.link_count(point) == len(wide.partitions)

    run(wide)


def test_a_wide_branch_is_durable_after_one_sync_of_the_file_system(wide: WideDirectory) -> None:
    @scenario
    async def run(wide: WideDirectory) -> None:
        await wide.branch_all()
        wide.restart(lose_power=True)
        for log in wide.logs_of(BRANCH.topic, BRANCH_ID):
            assert len(stored(log)) == 9
            assert log.branch_point is not None

    run(wide)


def test_a_sync_of_the_file_system_that_fails_fails_the_log_directory(wide: WideDirectory) -> None:
    @scenario
    async def run(wide: WideDirectory) -> None:
        wide.files.fail_next("sync_filesystem", errno.EIO)
        with pytest.raises(ApiError, match="KAFKA_STORAGE_ERROR"):
            await wide.branch_all()
        assert len(wide.faults) == 1

    run(wide)


@scenario
async def test_a_branch_has_no_leader_epoch_that_begins_behind_its_end(directory: Directory) -> None:
    fill(directory.source, 4)
    directory.source.append(build_batch([Record(0, START_MS, b"k", b"v")]), leader_epoch=7)
    branch = await directory.branch(12)
    assert branch.epochs.latest == 0
    assert directory.source.epochs.latest == 7


@scenario
async def test_a_log_whose_topic_was_deleted_meanwhile_has_no_branch(directory: Directory) -> None:
    fill(directory.source, 5)
    source = directory.source
    await directory.flush(source)
    directory.logs.delete(SOURCE)
    with pytest.raises(ApiError, match="was deleted meanwhile"):
        await directory.logs.branches.stage([(source, 3)], BRANCH.topic, BRANCH_ID)


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_a_source_with_one_index_missing_is_branched_as_with_both(suffix: str) -> None:
    @scenario
    async def body(directory: Directory) -> None:
        fill(directory.source, 20)
        directory.source.roll()
        await directory.flush(directory.source)
        directory.restart()
        sealed = directory.source.segments[0]
        directory.files.remove(next(each.path for each in sealed.handles if each.path.endswith(suffix)))
        branch = await directory.branch(sealed.next_offset - 1 if sealed.next_offset > 0 else 4)
        assert stored(branch) == stored(directory.source)[: branch.log_end_offset]

    body(Directory())
