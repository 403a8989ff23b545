"""Random appends, branches, truncations, compactions, retention, deletions and restarts: every log is what its own
history says, whatever its relatives went through."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
from dataclasses import dataclass, field

import pytest

from flowstone.log.branching import files as branching
from flowstone.log.partition import segment_store
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.segments.cached_reads import wait_for
from flowstone.types import TopicPartition
from flowstone.wire.compression import Codec
from flowstone.wire.record_batch import Record
from tests.support.branched_logs import CONFIG, Directory, append, stored
from tests.support.compacted_log import CompactionRun

SEEDS = int(os.environ.get("FLOWSTONE_BRANCHING_SEEDS", "20"))  # more in the long run
SEEDS_TO_FIND_BUGS = 10
STEPS = 60
TOPICS_MAX = 5
KEYS = 9
COMPACTED = dataclasses.replace(CONFIG, cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0)


@dataclass
class Model:
    """What a log must hold."""

    topic_id: bytes
    start: int = 0
    end: int = 0
    records: list[Record] = field(default_factory=list)

    def visible(self) -> list[Record]:
        return [record for record in self.records if record.offset >= self.start]

    def compact(self, to_offset: int) -> None:
        """Of what lies before, the last record of every key stays."""
        last = {record.key: record.offset for record in self.records if record.offset < to_offset}
        self.records = [each for each in self.records if each.offset >= to_offset or last[each.key] == each.offset]


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.directory = Directory()
        self.directory.files.make_directory("/data")
        self.directory.open()
        self.models = {"t0": Model(b"\x01" * 16)}
        self.made = 1

    def log(self, name: str) -> PartitionLog:
        return self.directory.logs.get_or_create(TopicPartition(name, 0), self.models[name].topic_id, CONFIG)

    def any_topic(self) -> str:
        return self.random.choice(sorted(self.models))

    async def step(self) -> None:
        actions = (
            [self.append] * 5 + [self.branch] * 2 + [self.truncate, self.delete_records, self.restart, self.delete]
        )
        actions += [self.compact, self.retain]
        await self.random.choice(actions)()

    async def append(self) -> None:
        name = self.any_topic()
        log, model = self.log(name), self.models[name]
        for _ in range(self.random.randrange(1, 8)):
            codec = self.random.choice((Codec.NONE, Codec.LZ4))
            values = [f"{name}-{model.end}-{i}".encode() * 3 for i in range(self.random.randrange(1, 5))]
            append(log, values, codec=codec, keys=KEYS)
            model.end = log.log_end_offset
        known = {record.offset for record in model.records}
        model.records += [record for record in stored(log) if record.offset not in known]
        assert all(record.value is not None and record.value.startswith(name.encode()) for record in stored(log)[-1:])

    async def branch(self) -> None:
        name = self.any_topic()
        source, model = self.log(name), self.models[name]
        if len(self.models) >= TOPICS_MAX or not source.exists:
            return
        if self.random.random() < 0.5:
            if source.segments.active.size_bytes:
                source.roll()
            end = source.log_end_offset
        else:
            end = self.random.randrange(model.start, model.end + 1)
            if end == source.log_end_offset and source.segments.active.size_bytes:
                source.roll()
        target, topic_id = f"t{self.made}", bytes([self.made + 1]) * 16
        self.made += 1
        staged = await self.directory.logs.branches.stage([(source, end)], target, topic_id)
        await self.directory.logs.branches.install(staged)
        asked, end = end, staged[0].built.end_offset
        assert end <= asked  # earlier where compaction has taken what was before it
        records = [record for record in model.visible() if record.offset < end]
        self.models[target] = Model(topic_id, model.start, end, records)

    async def truncate(self) -> None:
        name = self.any_topic()
        log, model = self.log(name), self.models[name]
        if model.end == model.start:
            return
        offset = self.random.randrange(model.start, model.end)
        batch_offset = batch_of(log, offset)
        await self.directory.logs.truncate_to(log, offset)
        model.end = log.log_end_offset
        assert model.start <= model.end <= max(batch_offset, model.start)
        model.records = [record for record in model.records if record.offset < model.end]

    async def delete_records(self) -> None:
        name = self.any_topic()
        log, model = self.log(name), self.models[name]
        if model.end > model.start and log.exists:
            model.start = self.random.randrange(model.start, model.end)
            await self.directory.logs.delete_records_before(log, model.start)

    async def compact(self) -> None:
        log, model = self.log(name := self.any_topic()), self.models[name]
        await self.directory.flush(log)
        compaction = CompactionRun(log, COMPACTED, self.directory.clock.time_ms())
        if log.exists and compaction.is_due:
            compaction.finish()
            model.compact(compaction.mapped_end)

    async def retain(self) -> None:
        log, model = self.log(name := self.any_topic()), self.models[name]
        await self.directory.flush(log)
        log.configure(dataclasses.replace(CONFIG, retention_bytes=1500))
        await self.directory.logs.directory_of(log).housekeeping.apply_retention()
        log.configure(CONFIG)
        assert model.start <= log.log_start_offset <= model.end
        model.start = log.log_start_offset

    async def delete(self) -> None:
        if len(self.models) > 2:
            name = self.any_topic()
            self.log(name)
            del self.models[name]
            self.directory.logs.delete(TopicPartition(name, 0))

    async def restart(self) -> None:
        """After a clean stop, or a power loss when all was flushed, or a kill."""
        for name in self.models:
            await self.directory.flush(self.log(name))
        for directory in self.directory.logs.directories:
            await directory.housekeeping.checkpoint()
        match self.random.randrange(3):
            case 0:
                self.directory.logs.close()
                self.directory.open()
            case 1:
                self.directory.restart(lose_power=True)
            case 2:
                self.directory.restart()

    def check(self) -> None:
        for name, model in self.models.items():
            log = self.log(name)
            assert (log.log_start_offset, log.log_end_offset) == (model.start, model.end), name
            assert stored(log) == model.visible(), name


def batch_of(log: PartitionLog, offset: int) -> int:
    """The base offset of the batch that holds an offset."""
    segment, position, _ = wait_for(lambda: log.segments.locate(offset))
    return wait_for(lambda: segment.header_at(position)).base_offset


def check_history(seed: int) -> None:
    async def run() -> None:
        world = World(seed)
        try:
            for _ in range(STEPS):
                await world.step()
                world.check()
        finally:
            world.directory.logs.abort()

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_log_ever_shows_what_was_done_to_its_relatives(seed: int) -> None:
    check_history(seed)


def is_found() -> bool:
    """Whether some history tells that something is wrong."""
    for seed in range(SEEDS_TO_FIND_BUGS):
        try:
            check_history(seed)
        except Exception:  # whatever it is that breaks
            return True
    return False


def test_a_truncation_of_a_shared_file_in_place_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_store, "own_file", lambda *_: False)
    assert is_found()


def test_a_branch_that_takes_a_batch_too_many_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branching, "cut_batch", lambda batch, _end_offset: bytes(batch))
    assert is_found()
