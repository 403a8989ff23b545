"""Compaction of random transactions: a read_committed reader has every key's last value before and after."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.segments.cached_reads import wait_for
from flowstone.wire.record_batch import decode_records, parse_header
from tests.support.compacted_log import CompactionRun, CutFiles, PowerCut
from tests.support.transactional_log import TransactionWriter, read_batch, visible_batches, wrong_indexes

ROUNDS = 5
WRITES = 25


def last_values(log: PartitionLog) -> dict[bytes | None, tuple[int, bytes | None]]:
    """By key, offset and value of the last record that a read_committed reader sees."""
    end = log.last_stable_offset(log.log_end_offset)
    aborted = wait_for(lambda: log.aborted_transactions(log.log_start_offset, end)) if end else []
    seen = dict[bytes | None, tuple[int, bytes | None]]()
    for offset in visible_batches(log, aborted, log.log_start_offset, end):
        for record in decode_records(read_batch(log, offset)):
            seen[record.key] = record.offset, record.value
    return seen


def compact(world: Any) -> None:
    world.flush()
    world.checkpoint()
    run = CompactionRun(world.log, world.config, world.clock.time_ms())
    if run.is_due:
        run.finish()
        world.log.first_dirty_offset = max(world.log.first_dirty_offset, run.mapped_end)


@pytest.mark.parametrize("seed", range(40))
def test_compaction_changes_nothing_that_a_read_committed_reader_ends_up_with(world: Any, seed: int) -> None:
    world.config = dataclasses.replace(
        world.config, cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0, delete_retention_ms=1000
    )
    world.log.configure(world.config)
    writer = TransactionWriter(world.log, seed)
    writer.keys = 5
    for number in range(ROUNDS):
        for _ in range(WRITES):
            writer.rng.choice([writer.write_transactional, writer.write_plain, writer.end_transaction])()
        before, stable = last_values(world.log), world.log.last_stable_offset(world.log.log_end_offset)
        epochs = {each: world.log.producers.get(each).epoch for each in writer.model.epochs()}
        compact(world)
        world.clock.advance(writer.rng.choice([0, 2]))
        assert last_values(world.log) == before
        assert wrong_indexes(world.log) == []
        if number % 2:
            world.files.lose_power()
            for name in world.names(".snapshot"):
                world.files.remove(f"{world.path}/{name}")
        world.reopen()
        assert last_values(world.log) == before
        assert wrong_indexes(world.log) == []
        assert world.log.last_stable_offset(world.log.log_end_offset) == stable
        assert {each: world.log.producers.get(each).epoch for each in epochs} == epochs
        writer.log = world.log


def test_aborted_batches_and_their_markers_go_in_the_end(world: Any) -> None:
    world.config = dataclasses.replace(
        world.config, cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0, delete_retention_ms=1000
    )
    world.log.configure(world.config)
    writer = TransactionWriter(world.log, 0)
    writer.write(1, is_transactional=True)
    writer.end(1, is_commit=False)
    world.log.roll()
    writer.write(1, is_transactional=True)
    assert len(world.log.segments[0].transactions.read()) == 34
    world.log.producers.clear()  # it has not been heard of for long
    for _ in range(4):
        world.log.first_dirty_offset = 0
        compact(world)
        world.clock.advance(2)
    first = world.log.segments[0]
    assert first.transactions.read() == b""
    assert first.transactions.has_file
    assert [parse_header(batch).record_count for batch in world.read_all()[:-1]] == [0], "where the segment ends"


def test_the_marker_that_raised_a_live_producers_epoch_stays(world: Any) -> None:
    world.config = dataclasses.replace(
        world.config, cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0, delete_retention_ms=1000
    )
    world.log.configure(world.config)
    writer = TransactionWriter(world.log, 0)
    writer.write(1, is_transactional=True)
    writer.epochs[1] = 1
    writer.end(1, is_commit=True)
    world.log.roll()
    world.log.append(writer.batch(1), leader_epoch=0)  # of the same key
    for _ in range(4):
        world.log.first_dirty_offset = 0
        world.log.roll()
        world.log.append(writer.batch(1), leader_epoch=0)
        compact(world)
        world.clock.advance(2)
    for name in world.names(".snapshot"):
        world.files.remove(f"{world.path}/{name}")
    world.reopen()
    assert world.log.producers.get(1).epoch == 1


@pytest.mark.parametrize("cut_in", range(0, 236, 3))
def test_a_crash_amid_a_swap_leaves_the_aborted_transactions_known(make_world: Callable[..., Any], cut_in: int) -> None:
    files = CutFiles()
    world = make_world(files)
    world.config = dataclasses.replace(world.config, cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0)
    world.log.configure(world.config)
    writer = TransactionWriter(world.log, 3)
    writer.keys = 5
    for _ in range(60):
        writer.rng.choice([writer.write_transactional, writer.write_plain, writer.end_transaction])()
    before = last_values(world.log)
    world.flush()
    world.checkpoint()
    files.cut_in = cut_in
    with contextlib.suppress(PowerCut):
        compact(world)
    files.cut_in = None
    files.lose_power()
    world.reopen()
    assert last_values(world.log) == before
