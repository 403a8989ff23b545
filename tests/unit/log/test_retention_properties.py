"""Random appends, settings, times and restarts against a model of what retention leaves, on a virtual clock; and
whether headroom says truly when a record goes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
from typing import NamedTuple

import pytest

from flowstone.broker.lag.headroom import headroom_s
from flowstone.broker.lag.next_unread import _segment_at
from flowstone.log.lifecycle import housekeeping
from flowstone.log.lifecycle.retention import SegmentFacts
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.segments.cached_reads import wait_for
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import Record, build_batch
from tests.support.branched_logs import CONFIG, Directory, stored

SEEDS = int(os.environ.get("FLOWSTONE_RETENTION_SEEDS", "60"))  # more in the long run
SEEDS_TO_FIND_BUGS = 20
STEPS = 40
NAME, TOPIC_ID = TopicPartition("events", 0), b"1" * 16
# Times in ms.
LATE_MAX, RETENTION, SEGMENT_MS = 20_000, (10_000, 60_000), 15_000
SIZES = (500, 3_000)
ROUNDING_S = 0.002  # times are whole milliseconds, the clock's are not


class Batch(NamedTuple):
    offset: int
    size_bytes: int
    newest_ms: int


class World:
    """One log, and what must be left of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.directory = Directory()
        self.directory.files.make_directory("/data")
        self.directory.open()
        self.config = dataclasses.replace(CONFIG, segment_ms=SEGMENT_MS, retention_ms=-1, retention_bytes=-1)
        self.batches: list[Batch] = []
        self.records: list[Record] = []
        self.start = 0

    @property
    def log(self) -> PartitionLog:
        return self.directory.logs.get_or_create(NAME, TOPIC_ID, self.config)

    @property
    def now_ms(self) -> int:
        return self.directory.clock.time_ms()

    async def append(self) -> None:
        """Records with their producer's times, which come in no order; flushed, so that retention may take them."""
        for _ in range(self.random.randrange(1, 6)):
            times = [self.now_ms - self.random.randrange(LATE_MAX) for _ in range(self.random.randrange(1, 4))]
            # No key comes twice: compaction, where it is on, has nothing to take.
            records = [Record(at, time_ms, b"%d" % (self.end + at), b"v" * 40) for at, time_ms in enumerate(times)]
            data = build_batch(records)
            offset = self.log.append(data, leader_epoch=0).base_offset
            self.batches.append(Batch(offset, len(data), max(times)))
            self.records += [record._replace(offset=offset + record.offset) for record in records]
        await self.directory.flush(self.log)

    async def configure(self) -> None:
        """While the broker runs: it counts from the next look on."""
        self.config = dataclasses.replace(
            self.config,
            retention_ms=self.random.choice([-1, *RETENTION]),
            retention_bytes=self.random.choice([-1, *SIZES]),
            cleanup_policy=self.random.choice([("delete",), ("delete",), ("compact",), ("compact", "delete")]),
        )
        self.log.configure(self.config)

    async def wait(self) -> None:
        self.directory.clock.advance(self.random.choice([1, 5, 30]))

    async def retain(self) -> None:
        expected = self.expected_start()
        await self.directory.logs.directory_of(self.log).housekeeping.apply_retention()
        assert self.log.log_start_offset == expected
        self.start = expected

    def expected_start(self) -> int:
        """The model: whole segments from the oldest on, while they are too old or the rest is enough."""
        if "delete" not in self.config.cleanup_policy:
            return self.start
        segments, start = self.segments(), self.start
        while segments and segments[0]:
            newest_ms = max(batch.newest_ms for batch in segments[0])
            rest_bytes = sum(batch.size_bytes for segment in segments[1:] for batch in segment)
            is_old = 0 <= self.config.retention_ms < self.now_ms - newest_ms
            is_much = 0 <= self.config.retention_bytes <= rest_bytes
            if not (is_old or is_much):
                break
            last = segments.pop(0)[-1]
            start = max(start, next((each.offset for each in self.batches if each.offset > last.offset), self.end))
        return start

    @property
    def end(self) -> int:
        return self.records[-1].offset + 1 if self.records else 0

    def segments(self) -> list[list[Batch]]:
        """The batches that are left, by the segment they lie in."""
        bases = [segment.base_offset for segment in self.log.segments]
        bounds = zip(bases, [*bases[1:], self.end], strict=True)
        return [[batch for batch in self.batches if base <= batch.offset < end] for base, end in bounds]

    async def delete_records(self) -> None:
        if self.start < self.end:
            self.start = self.random.randrange(self.start, self.end)
            await self.directory.logs.delete_records_before(self.log, self.start)

    async def restart(self) -> None:
        """Killed or stopped: what was deleted stays so, and what was not is there."""
        if self.random.random() < 0.5:
            self.directory.logs.close()
            self.directory.open()
        else:
            await self.directory.logs.directory_of(self.log).housekeeping.checkpoint()
            self.directory.restart(lose_power=self.random.random() < 0.5)
        self.log.configure(self.config)

    def check(self) -> None:
        assert (self.log.log_start_offset, self.log.log_end_offset) == (self.start, self.end)
        assert [record[:4] for record in stored(self.log)] == [
            record[:4] for record in self.records if record.offset >= self.start
        ]


async def play(world: World) -> None:
    actions = [world.append] * 5 + [world.wait] * 3 + [world.retain] * 3
    actions += [world.configure] * 2 + [world.delete_records, world.restart]
    for _ in range(STEPS):
        await world.random.choice(actions)()
        world.check()


def check_history(seed: int) -> None:
    async def run() -> None:
        world = World(seed)
        try:
            await play(world)
        except BaseException:
            print(f"seed {seed}")
            raise
        finally:
            world.directory.logs.abort()

    asyncio.run(run())


@pytest.mark.parametrize("first_seed", range(0, SEEDS, 20))
def test_retention_leaves_what_the_model_says(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 20):
        check_history(seed)


def test_a_retention_that_goes_by_the_first_record_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times come in no order: the newest one of a segment decides, wherever it lies."""

    def by_the_first(log: PartitionLog) -> list[SegmentFacts]:
        facts = _segment_facts(log)
        firsts = [
            wait_for(lambda segment=segment: segment.header_at(0)).base_timestamp  # type: ignore[misc]
            for segment in log.segments
            if segment.size_bytes
        ]
        return [fact._replace(newest_ms=first) for fact, first in zip(facts, firsts, strict=False)]

    _segment_facts = housekeeping._segment_facts
    monkeypatch.setattr(housekeeping, "_segment_facts", by_the_first)

    def check_some() -> None:
        for seed in range(SEEDS_TO_FIND_BUGS):
            check_history(seed)

    with pytest.raises(AssertionError):
        check_some()


# Headroom


@pytest.mark.parametrize("seed", range(max(SEEDS // 3, 1)))
def test_a_record_is_deleted_when_its_headroom_is_over_and_not_before(seed: int) -> None:
    """Times rise here, and nothing more is appended: then headroom is exact."""

    async def run() -> None:
        world = World(seed)
        clock, keeping = world.directory.clock, world.directory.logs.directory_of(world.log).housekeeping
        world.config = dataclasses.replace(world.config, retention_ms=world.random.choice(RETENTION))
        world.log.configure(world.config)
        for _ in range(world.random.randrange(1, 40)):
            clock.advance(world.random.choice([0.1, 1, 4]))
            world.log.append(build_batch([Record(0, world.now_ms, b"k", b"v" * 60)]), leader_epoch=0)
        await world.directory.flush(world.log)
        await keeping.apply_retention()
        log = world.log
        offset = world.random.randrange(log.log_start_offset, log.log_end_offset)
        left_s = headroom_s(_segment_at(log, offset, 0.0, world.now_ms), log.config, 0.0, world.now_ms)
        assert left_s is not None
        clock.advance(max(left_s - ROUNDING_S, 0))
        await keeping.apply_retention()
        assert log.log_start_offset <= offset
        clock.advance(2 * ROUNDING_S)
        await keeping.apply_retention()
        assert log.log_start_offset > offset
        world.directory.logs.abort()

    asyncio.run(run())
