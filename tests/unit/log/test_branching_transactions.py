"""Branches of logs with transactions: those that were open where the branch begins are aborted in it."""

from __future__ import annotations

import random

import pytest

from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.segments.cached_reads import wait_for
from flowstone.wire.record_batch import parse_header
from tests.support.branched_logs import BRANCH, BRANCH_ID, Directory, append, scenario
from tests.support.transactional_log import TransactionWriter, read_batch, visible_batches, wrong_indexes


@pytest.fixture
def directory() -> Directory:
    return Directory()


def written(log: PartitionLog, seed: int, steps: int) -> TransactionWriter:
    writer = TransactionWriter(log, seed)
    for _ in range(steps):
        writer.rng.choice([writer.write_transactional, writer.write_plain, writer.end_transaction])()
    return writer


def visible(log: PartitionLog, end: int) -> list[int]:
    assert log.last_stable_offset(log.log_end_offset) == log.log_end_offset, "no transaction is open"
    assert wrong_indexes(log) == []
    aborted = wait_for(lambda: log.aborted_transactions(0, log.log_end_offset))
    return [offset for offset in visible_batches(log, aborted, 0, log.log_end_offset) if offset < end]


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("through", ["", "a crash", "a stop"])
def test_a_branch_shows_what_was_committed_where_it_begins(seed: int, through: str) -> None:
    async def check(directory: Directory) -> None:
        writer, rng = written(directory.source, seed, 40), random.Random(seed)
        await directory.flush(directory.source)
        end = rng.randint(1, directory.source.log_end_offset)
        if end == directory.source.log_end_offset:
            directory.source.roll()
        branch = await directory.branch(end)
        writer.model.batches = [batch for batch in writer.model.batches if batch.base_offset < end]
        if through:
            if through == "a stop":
                directory.logs.close()
                directory.open()
            else:
                directory.restart(lose_power=True)
            branch = directory.branch_log
        assert visible(branch, end) == writer.model.visible(0, end)
        markers = [parse_header(read_batch(branch, offset)) for offset in range(end, branch.log_end_offset)]
        assert {header.producer_id for header in markers} == set(writer.model.transactions()[0])
        assert all(header.is_control for header in markers)

    scenario(check)(Directory())


@scenario
async def test_a_live_producers_next_transaction_is_visible_in_the_branch(directory: Directory) -> None:
    source = TransactionWriter(directory.source, 1)
    source.write(1, is_transactional=True)
    branch = await directory.branch()
    writer = TransactionWriter(branch, 1)
    begin = branch.log_end_offset
    writer.write(1, is_transactional=True)
    writer.end(1, is_commit=True)
    assert visible(branch, branch.log_end_offset) == [begin]


@scenario
async def test_a_branch_without_open_transactions_has_no_records_of_its_own(directory: Directory) -> None:
    writer = TransactionWriter(directory.source, 1)
    writer.write(1, is_transactional=True)
    writer.end(1, is_commit=False)
    branch = await directory.branch()
    assert branch.log_end_offset == directory.source.log_end_offset
    assert visible(branch, branch.log_end_offset) == []


@scenario
async def test_what_a_branch_was_given_is_derived_again_from_its_log(directory: Directory) -> None:
    source = TransactionWriter(directory.source, 1)
    source.write(1, is_transactional=True)
    branch = await directory.branch()
    branch.roll()
    append(branch, [b"more"])
    await directory.flush(branch)
    path = branch.path
    directory.logs.abort()
    for name in directory.files.names(path):
        if name.endswith((".snapshot", ".txnindex")):
            directory.files.remove(f"{path}/{name}")
    directory.open()
    assert visible(directory.branch_log, 1) == []


@scenario
async def test_a_branch_whose_index_is_damaged_is_still_no_log_of_its_sources_producers(directory: Directory) -> None:
    source = TransactionWriter(directory.source, 1)
    source.write(1, is_transactional=True)
    source.end(1, is_commit=False)
    branch = await directory.branch()
    path = branch.path
    directory.logs.abort()
    (index,) = (name for name in directory.files.names(path) if name.endswith(".txnindex"))
    directory.files.open(f"{path}/{index}").truncate(1)
    directory.open()
    assert visible(directory.branch_log, 2) == []
    assert directory.branch_log.producers.get(1) is None


@scenario
async def test_a_branch_of_a_branch_keeps_what_the_first_one_aborted(directory: Directory) -> None:
    source = TransactionWriter(directory.source, 1)
    source.write(1, is_transactional=True)
    await directory.branch()
    branch = directory.branch_log
    branch.roll()
    staged = await directory.logs.branches.stage([(branch, branch.log_end_offset)], "orders-second", b"3" * 16)
    await directory.logs.branches.install(staged)
    second = directory.logs.get_or_create(staged[0].topic_partition, b"3" * 16, branch.config)
    assert (branch.topic_partition, branch.topic_id) == (BRANCH, BRANCH_ID)
    assert second.log_end_offset == branch.log_end_offset
    assert visible(second, second.log_end_offset) == []
