from __future__ import annotations

import random
from typing import Any

import pytest

from flowstone.errors import ApiError
from flowstone.log.directories.restored_partitions import (
    RESTORE_POINT,
    RestorePoint,
    StagedLog,
    encode_restore_point,
    install,
    prepare,
    staged_path,
)
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.segments.cached_reads import wait_for
from flowstone.log.segments.file_handles import FileHandles
from flowstone.types import TopicPartition
from tests.support.branched_logs import BRANCH_ID, CONFIG, SOURCE, Directory, scenario
from tests.support.transactional_log import TransactionWriter, visible_batches

RESTORED = TopicPartition("restored", 0)


async def restore(directory: Directory) -> None:
    """Stage a copy of the source's directory, as a backup has it, and put it in place."""
    source, files = directory.source, directory.files
    task = source.closing_task()
    assert task is not None
    task.run()
    source.durability.flushed(task)
    path = staged_path("/data", 0, "0" * 32)
    files.new_directory(path)
    for name in files.names(source.path):
        files.copy(f"{source.path}/{name}", f"{path}/{name}", files.size(f"{source.path}/{name}"))
        files.open(f"{path}/{name}").sync()
    files.open(f"{path}/{RESTORE_POINT}", create=True).write(
        0, [encode_restore_point(RestorePoint(SOURCE.topic, 0, source.log_end_offset))]
    )
    home = directory.logs.directory_of(source)
    staged = await prepare(home, path, RESTORED, BRANCH_ID)
    await install([staged], CONFIG, directory.clock, FileHandles(files, 16))


def visible(log: PartitionLog) -> list[int]:
    end = log.log_end_offset
    assert log.last_stable_offset(end) == end, "no transaction is open"
    return visible_batches(log, wait_for(lambda: log.aborted_transactions(0, end)), 0, end)


@pytest.mark.parametrize("seed", range(10))
def test_transactions_that_were_open_where_a_backup_ended_are_aborted_in_what_is_restored(seed: int) -> None:
    async def check(directory: Directory) -> None:
        writer = TransactionWriter(directory.source, seed)
        for _ in range(random.Random(seed).randint(1, 40)):
            writer.rng.choice([writer.write_transactional, writer.write_plain, writer.end_transaction])()
        end = directory.source.log_end_offset
        await restore(directory)
        for _ in range(2):
            restored = directory.logs.get_or_create(RESTORED, BRANCH_ID, CONFIG)
            assert restored.log_end_offset == end + len(writer.model.transactions()[0])
            assert visible(restored) == writer.model.visible(0, end)
            directory.restart(lose_power=True)

    scenario(check)(Directory())


def test_a_restored_log_knows_where_it_left_its_source_before_and_after_a_restart() -> None:
    async def check(directory: Directory) -> None:
        TransactionWriter(directory.source, 1).write_plain()
        end = directory.source.log_end_offset
        await restore(directory)
        for _ in range(2):
            point = directory.logs.get_or_create(RESTORED, BRANCH_ID, CONFIG).branch_point
            assert point is not None
            assert (point.source_topic, point.offset) == (SOURCE.topic, end)
            directory.restart(lose_power=True)

    scenario(check)(Directory())


@pytest.mark.parametrize(
    ("start", "end", "is_good"), [(0, 0, True), (3, 3, True), (0, 5, True), (4, 3, False), (-1, 3, False)]
)
def test_a_restore_point_starts_at_0_or_later_and_ends_no_earlier(start: int, end: int, is_good: bool) -> None:
    async def check(directory: Directory) -> None:
        TransactionWriter(directory.source, 1).write_plain()
        files, path = directory.files, staged_path("/data", 0, "0" * 32)
        files.new_directory(path)
        files.open(f"{path}/{RESTORE_POINT}", create=True).write(
            0, [encode_restore_point(RestorePoint(SOURCE.topic, start, end))]
        )
        staging = prepare(directory.logs.directory_of(directory.source), path, RESTORED, BRANCH_ID)
        if is_good:
            staged = await staging
            await install([staged], CONFIG, directory.clock, FileHandles(files, 16))
            assert directory.logs.logs[RESTORED].log_end_offset == end
        else:
            with pytest.raises(ApiError, match="not what a restore has staged"):
                await staging

    scenario(check)(Directory())


@pytest.mark.parametrize(
    ("epochs", "latest"),
    [(b"0\n0\n", 0), (b"0\n1\n0 0\n", 0), (b"0\n2\n3 0\n7 5\n", 7), (b"rubbish", 0)],
)
def test_a_restored_log_goes_on_in_the_latest_epoch_of_its_batches(epochs: bytes, latest: int) -> None:
    home: Any = None
    staged = StagedLog(RESTORED, BRANCH_ID, home, "/data/x", RestorePoint("source", 0, 9), (), epochs, None)
    assert staged.leader_epoch == latest
