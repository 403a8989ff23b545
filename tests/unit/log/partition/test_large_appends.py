"""Large batches that are written in pieces: whatever happens between the pieces, the log is as if written at once."""

from __future__ import annotations

import dataclasses
import errno
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from flowstone.errors import ApiError
from flowstone.log.partition import large_appends
from flowstone.log.partition.partition_log import WrittenAhead
from flowstone.log.partition.validation import check_batch
from flowstone.wire.record_batch import HEADER_BYTES, Record, build_batch, parse_header

PIECE_BYTES = 500
SEEDS = int(os.environ.get("FLOWSTONE_LARGE_APPEND_SEEDS", "150"))


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_appends, "PIECE_BYTES", PIECE_BYTES)


class LargeAppend:
    """A batch of some pieces, appended step by step as `Preparing` does it."""

    def __init__(self, world: Any, batch: bytes) -> None:
        self.world, self.batch = world, batch
        self.written: WrittenAhead | None = world.log.begin_large_append(batch, world.clock.time_ms())
        self.steps: Iterator[None] = self.written.steps() if self.written is not None else iter(())

    def step(self) -> bool:
        """Write the next piece; return False if none was left."""
        return next(self.steps, self) is not self

    def end(self) -> None:
        """Write the pieces that are left, and append the batch."""
        while self.step():
            pass
        log = self.world.log
        try:
            header, _ = check_batch(self.batch, log.config, self.world.clock.time_ms())
            opened = header.base_timestamp, header.max_timestamp
            log.append(self.batch, leader_epoch=0, opened=opened, written=self.written)
        finally:
            if self.written is not None:
                self.written.cut_off()


def large(world: Any) -> bytes:
    batch: bytes = world.batch(60)
    assert 5 * PIECE_BYTES < len(batch) < world.config.segment_bytes
    return batch


@pytest.fixture
def world(world: Any) -> Any:
    world.config = dataclasses.replace(world.config, segment_bytes=8_000)
    world.log.configure(world.config)
    return world


def bodies(world: Any) -> list[bytes]:
    """Every stored batch without the part that the broker sets."""
    return [batch[16:] for batch in world.read_all()]


def file_bytes(world: Any) -> int:
    return int(world.log.segments.active.log.get().size())


@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_a_large_batch_is_stored_as_if_written_at_once(world: Any, timestamp_type: str) -> None:
    world.log.configure(dataclasses.replace(world.config, message_timestamp_type=timestamp_type))
    batch = large(world)
    for _ in range(2):
        LargeAppend(world, batch).end()
    assert world.log.log_end_offset == 120
    first, second = world.read_all()
    world.log.append(batch, leader_epoch=0)
    at_once = world.read_batch(120)
    assert first[8:] == second[8:] == at_once[8:]
    assert parse_header(second).base_offset == 60


def test_only_the_header_is_written_by_the_append(world: Any) -> None:
    world.append()
    appending = LargeAppend(world, large(world))
    while appending.step():
        pass
    writes: list[int] = []
    file = world.log.segments.active.log.get()
    write = file.write
    file.write = lambda position, buffers: writes.append(sum(map(len, buffers))) or write(position, buffers)
    appending.end()
    assert writes == [HEADER_BYTES]


def test_a_batch_that_comes_between_the_pieces_is_kept_and_so_is_the_large_one(world: Any) -> None:
    appending = LargeAppend(world, large(world))
    assert appending.step()
    world.append()
    appending.end()
    assert [parse_header(batch).record_count for batch in world.read_all()] == [1, 60]
    assert bodies(world)[1] == appending.batch[16:]


def test_a_failed_append_between_the_pieces_removes_them_and_they_are_written_again(world: Any) -> None:
    world.append()
    appending = LargeAppend(world, large(world))
    assert appending.step()
    world.files.fail_next("write", errno.ENOSPC)
    with pytest.raises(ApiError):
        world.append()
    appending.end()
    assert bodies(world)[1] == appending.batch[16:]


def test_a_full_disk_between_the_pieces_refuses_the_batch_and_leaves_no_trace(world: Any) -> None:
    world.append()
    end, size = world.log.end, file_bytes(world)
    appending = LargeAppend(world, large(world))
    assert appending.step()
    world.files.fail_next("write", errno.ENOSPC, times=2)
    with pytest.raises(ApiError):
        appending.end()
    assert world.log.end == end
    assert file_bytes(world) == size


def test_a_batch_that_is_refused_at_the_end_is_cut_off(world: Any) -> None:
    world.append()
    world.flush()
    size = file_bytes(world)
    appending = LargeAppend(world, large(world))
    world.log.is_held = True
    with pytest.raises(ApiError):
        appending.end()
    assert file_bytes(world) == size
    assert not world.log.segments.active.log.pinned


def test_a_flush_between_the_pieces_overwrites_none_of_them(world: Any) -> None:
    """A flush may preallocate zeros after the log's end."""
    world.append(value_bytes=100)
    appending = LargeAppend(world, large(world))
    assert appending.step()
    world.flush()
    appending.end()
    assert bodies(world)[1] == appending.batch[16:]


def test_two_large_batches_at_once_are_both_stored(world: Any) -> None:
    """The pieces of one must not replace those of the other, which lie at the same place."""
    world.append()
    first = LargeAppend(world, world.batch(60, value_bytes=41))
    second = LargeAppend(world, world.batch(60, value_bytes=42))
    while first.step() | second.step():
        pass
    first.end()
    second.end()
    assert bodies(world)[1:] == [first.batch[16:], second.batch[16:]]


def test_pieces_whose_write_and_removal_fail_are_written_again(world: Any) -> None:
    world.append()
    appending = LargeAppend(world, large(world))
    assert appending.step()
    world.files.fail_next("write", errno.EIO)
    world.files.fail_next("truncate", errno.EIO)
    appending.end()
    assert bodies(world)[1] == appending.batch[16:]


def test_a_batch_between_the_pieces_leaves_nothing_of_them_behind_it(world: Any) -> None:
    """Records are a client's bytes: behind the log's end a start might take them for a batch."""
    appending = LargeAppend(world, large(world))
    assert appending.step()
    appended_bytes = len(world.batch())
    world.append()
    assert file_bytes(world) == appended_bytes
    appending.end()


def test_a_clean_stop_between_the_pieces_right_after_a_start_leaves_a_clean_log(world: Any) -> None:
    """A log without appends since the start has nothing to write at a stop, but for what lies beyond its end."""
    world.append()
    world.stop_cleanly()
    world.reopen(clean=True)
    world.log.durability.note_as_closed()  # as a start does that finds the state of a clean stop
    size = file_bytes(world)
    appending = LargeAppend(world, large(world))
    assert appending.step()
    world.stop_cleanly()
    assert not appending.step()
    world.reopen(clean=True)
    assert file_bytes(world) == size
    assert world.log.log_end_offset == 1


@pytest.mark.parametrize("value_bytes", range(40, 560, 40))
def test_a_crash_between_the_pieces_of_records_that_contain_a_batch_loses_nothing(world: Any, value_bytes: int) -> None:
    world.append(value_bytes=value_bytes)
    world.flush()
    inner = bytearray(world.batch(value_bytes=10))
    inner[:8] = (7).to_bytes(8)
    records = [Record(at, world.clock.time_ms(), None, bytes(inner) + b"." * 100) for at in range(20)]
    appending = LargeAppend(world, build_batch(records))
    for _ in range(3):
        assert appending.step()
    world.reopen(clean=False)
    assert world.log.log_end_offset == 1


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_whatever_happens_between_the_pieces_the_log_has_each_accepted_batch_once(world: Any, first: int) -> None:
    for seed in range(first, min(first + 50, SEEDS)):
        fresh = type(world)()
        fresh.config = dataclasses.replace(fresh.config, segment_bytes=8_000)
        fresh.log.configure(fresh.config)
        try:
            _live(fresh, random.Random(seed))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


def _restart(world: Any, after: str) -> None:
    if after == "stop":
        world.stop_cleanly()
    elif after == "power":
        world.files.lose_power()
    world.reopen(clean=after == "stop")
    if after == "stop":
        world.log.durability.note_as_closed()


def _live(world: Any, chance: random.Random) -> None:
    accepted: list[bytes] = []
    flushed = 0
    under_way: list[LargeAppend] = []
    for _ in range(60):
        appending = chance.choice(under_way) if under_way else None
        action = chance.choice(
            ["small", "begin", *["step"] * 6, "end", "flush", "roll", "fail", "crash", "power", "stop"]
        )
        match action:
            case "small":
                accepted.append(world.batch(chance.randint(1, 3), value_bytes=chance.randint(1, 200)))
                world.log.append(accepted[-1], leader_epoch=0)
            case "begin" if len(under_way) < 2:
                under_way.append(LargeAppend(world, world.batch(60, value_bytes=chance.randint(20, 60))))
            case "step" if appending is not None:
                appending.step()
            case "end" if appending is not None:
                appending.end()
                accepted.append(appending.batch)
                under_way.remove(appending)
            case "flush":
                world.flush()
                flushed = len(accepted)
            case "roll" if world.log.segments.active.size_bytes:
                world.log.roll()
            case "fail" if world.log.exists:
                world.files.fail_next("write", errno.ENOSPC)
                with pytest.raises(ApiError):
                    world.log.append(world.batch(), leader_epoch=0)
                world.files.fail_nothing()
            case "crash" | "power" | "stop":
                under_way.clear()
                _restart(world, action)
                kept = bodies(world)
                assert len(kept) >= flushed or action == "stop"
                assert kept == [batch[16:] for batch in accepted[: len(kept)]]
                assert action == "power" or len(kept) == len(accepted)
                del accepted[len(kept) :]
                flushed = len(accepted)
    assert bodies(world) == [batch[16:] for batch in accepted]


def test_one_large_batch_is_written_ahead_at_a_time(world: Any) -> None:
    first = LargeAppend(world, large(world))
    assert first.written is not None
    second = LargeAppend(world, large(world))
    assert second.written is None
    second.end()
    first.end()
    assert LargeAppend(world, large(world)).written is not None
    assert [parse_header(batch).record_count for batch in world.read_all()] == [60, 60]
