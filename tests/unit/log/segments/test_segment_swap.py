"""What a start makes of a swap that a crash interrupted, where random crashes seldom lead."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from flowstone.errors import StorageFault
from flowstone.log.compaction.one_log import Compaction
from flowstone.log.segments.segment_swap import finish_swaps
from flowstone.log.workers.throttle import Throttle
from tests.support.compacted_log import UNLIMITED, CompactionRun

FIRST = "00000000000000000000"


@pytest.fixture
def swapping(world: Any) -> Any:
    """A log of several segments, its first group compacted and renamed to `.swap`, nothing else done."""
    world.config = dataclasses.replace(world.config, cleanup_policy=("compact",), segment_bytes=400)
    world.log.configure(world.config)
    for _ in range(20):
        world.append(2)
    world.flush()
    world.checkpoint()
    run = CompactionRun(world.log, world.config, world.clock.time_ms())
    compaction = Compaction(world.files, run.job, Throttle(UNLIMITED))
    compaction.build_map()
    compaction.clean(run.job.groups[0])
    for suffix in ("index", "timeindex", "log"):
        world.files.rename(f"{world.path}/{FIRST}.{suffix}.cleaned", f"{world.path}/{FIRST}.{suffix}.swap")
    world.files.sync_directory(world.path)
    world.before = world.log.segments[0].size_bytes
    return world


def swapped_bytes(world: Any) -> int:
    size: int = world.files.size(f"{world.path}/{FIRST}.log.swap")
    return size


def test_a_start_finishes_it(swapping: Any) -> None:
    size_bytes = swapped_bytes(swapping)
    assert swapping.reopen().segments[0].size_bytes == size_bytes < swapping.before
    assert swapping.names(".swap") == []


def test_a_start_after_a_clean_stop_finishes_it_too(swapping: Any) -> None:
    swapping.stop_cleanly()
    size_bytes = swapped_bytes(swapping)
    assert swapping.reopen(clean=True).segments[0].size_bytes == size_bytes


def test_indexes_without_their_log_are_removed(swapping: Any) -> None:
    swapping.files.remove(f"{swapping.path}/{FIRST}.log.swap")
    assert swapping.reopen().segments[0].size_bytes == swapping.before
    assert swapping.names(".swap") == []


def test_a_damaged_new_segment_is_given_up_while_the_old_ones_are_there(swapping: Any) -> None:
    swapping.damage(f"{FIRST}.log.swap", lambda data: data.__setitem__(40, data[40] ^ 1))
    assert swapping.reopen().segments[0].size_bytes == swapping.before
    assert swapping.names(".swap") == []


def test_a_damaged_new_segment_without_the_old_ones_is_a_fault(swapping: Any) -> None:
    swapping.damage(f"{FIRST}.log.swap", lambda data: data.__setitem__(40, data[40] ^ 1))
    swapping.files.rename(f"{swapping.path}/{FIRST}.log", f"{swapping.path}/{FIRST}.log.deleted")
    with pytest.raises(StorageFault, match="what it replaces is gone"):
        swapping.reopen()


def test_a_start_knows_whether_there_was_anything_to_finish(swapping: Any) -> None:
    def finish() -> bool:
        return finish_swaps(swapping.files, swapping.path, swapping.files.names(swapping.path))

    assert finish()
    assert not finish()
    swapping.files.open(f"{swapping.path}/{FIRST}.log.cleaned", create=True)
    assert finish()
    assert not finish()
