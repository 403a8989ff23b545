"""A random history of a compacted log, which knows what the model says must be left of it."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from flowstone.log.partition.timestamps import first_record_at
from flowstone.log.segments.cached_reads import wait_for
from flowstone.log.segments.sparse_index import IndexEntries
from flowstone.wire.compression import Codec
from flowstone.wire.record_batch import Record, build_batch, checksum_matches, parse_header
from tests.support.compacted_log import (
    CompactionRun,
    CutFiles,
    Model,
    PowerCut,
    check_order,
    stored_horizons,
    stored_records,
)
from tests.support.compacted_log import Record as Stored

STEPS = 25
DELETE_RETENTION_MS = 3000
CODECS = [Codec.NONE, Codec.NONE, Codec.NONE, *Codec]


class History:
    def __init__(self, world: Any, seed: int) -> None:
        self.world, self.random = world, random.Random(seed)
        self.model = Model()
        self.sequences: dict[int, int] = {}
        self.files: CutFiles = world.files
        world.config = dataclasses.replace(
            world.config,
            cleanup_policy=("compact",),
            segment_bytes=self.random.choice([400, 900, 2500]),
            index_interval_bytes=self.random.choice([0, 150, 400]),
            delete_retention_ms=DELETE_RETENTION_MS,
            min_cleanable_dirty_ratio=0.0,
        )
        world.log.configure(world.config)
        self.map_bytes_max = self.random.choice([1, 1 << 20])  # 1: as few keys as it takes

    def append(self) -> None:
        time_ms = self.world.clock.time_ms() - self.random.randint(0, 2000)
        records = []
        for at in range(self.random.randint(1, 4)):
            value = None if self.random.random() < 0.25 else self.random.randbytes(self.random.randint(0, 60))
            records.append(Record(at, time_ms + at, b"k%d" % self.random.randint(0, 60), value))
        more: dict[str, int] = {}
        producer_id = self.random.choice([-1, -1, *range(1, 6)])
        if producer_id > 0:
            sequence = self.sequences.get(producer_id, 0)
            more = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
            self.sequences[producer_id] = sequence + len(records)
        sent = build_batch(records, codec=self.random.choice(CODECS), **more)
        base = self.world.log.append(sent, leader_epoch=0).base_offset
        self.model.batch_ends[base] = base + len(records) - 1
        self.model.records += [Stored(base + each.offset, base, *each[1:4]) for each in records]

    def wait(self) -> None:
        self.world.clock.advance(self.random.choice([0.5, 2, 5]))

    def flush(self) -> None:
        self.world.flush()
        self.world.checkpoint()

    def begin(self) -> CompactionRun:
        self.flush()
        return CompactionRun(self.world.log, self.world.config, self.world.clock.time_ms(), self.map_bytes_max)

    def compact(self) -> None:
        compaction = self.begin()
        if compaction.is_due:
            compaction.finish()
            self.model.compact(compaction.mapped_end, compaction.ends[-1], compaction.now_ms, DELETE_RETENTION_MS)

    def crash_while_compacting(self) -> None:
        """What is left is old up to some segment and new before it."""
        compaction = self.begin()
        self.files.cut_in = self.random.randint(0, 80)
        try:
            if compaction.is_due:
                compaction.finish()
        except PowerCut:
            pass
        self.files.cut_in = None
        self.reopen_after_crash()
        candidates = []
        for to_offset in compaction.ends:
            candidates.append(self.model.copy())
            candidates[-1].compact(compaction.mapped_end, to_offset, compaction.now_ms, DELETE_RETENTION_MS)
        batches = self.world.read_all()
        found = stored_records(batches), stored_horizons(batches)
        self.model = next(each for each in candidates if (each.records, each.live_horizons()) == found)
        self.check()

    def reopen_after_crash(self) -> None:
        first_dirty_offset = self.world.log.first_dirty_offset
        if self.random.random() < 0.7:
            self.files.lose_power()
        if self.random.random() < 0.5:
            self.lose_snapshots()
        self.files.cut_in = self.random.choice([None, self.random.randint(0, 40)])
        try:
            self.world.reopen()
        except PowerCut:  # in the midst of recovery, which must be able to begin again
            self.files.lose_power()
            self.files.cut_in = None
            self.world.reopen()
        self.files.cut_in = None
        # The checkpoint may have been written or not, and may be lost.
        self.world.log.first_dirty_offset = self.random.choice([0, first_dirty_offset])

    def lose_snapshots(self) -> None:
        """What they say follows from the log."""
        for name in self.world.names(".snapshot"):
            self.files.remove(f"{self.world.path}/{name}")

    def crash(self) -> None:
        self.flush()
        self.reopen_after_crash()
        self.check()

    def restart(self) -> None:
        first_dirty_offset = self.world.log.first_dirty_offset
        self.world.stop_cleanly()
        self.world.reopen(clean=True)
        self.world.log.first_dirty_offset = first_dirty_offset

    def check(self) -> None:
        log, batches = self.world.log, self.world.read_all()
        assert all(checksum_matches(batch, 0, parse_header(batch)) for batch in batches)
        check_order(batches, log.log_end_offset)
        assert stored_records(batches) == self.model.records
        assert stored_horizons(batches) == self.model.live_horizons()
        for producer_id, sequence in self.sequences.items():
            producer = log.producers.get(producer_id)
            assert producer is not None
            assert producer.batches[-1].last_sequence == sequence - 1
        assert not [name for name in self.world.names() if name.endswith((".cleaned", ".swap"))]
        self.check_indexes()
        self.check_lookups()

    def check_indexes(self) -> None:
        """Those of compacted segments are what would be made of the log."""
        log = self.world.log
        for segment in [
            first for first, second in pairwise(log.segments) if second.base_offset <= log.first_dirty_offset
        ]:
            indexes = segment.rebuild(segment.log.get(), segment.size_bytes).indexes
            for made, handle in ((indexes.offsets, indexes.offset_handle), (indexes.times, indexes.time_handle)):
                assert isinstance(made, IndexEntries)
                assert self.files.read(handle.path) == made.encode()

    def check_lookups(self) -> None:
        log, records = self.world.log, self.model.records
        offset = self.random.randrange(log.log_end_offset) if log.log_end_offset else 0
        if offset < log.log_end_offset:
            found = [each.offset for each in stored_records([self.world.read_batch(offset)])]
            expected = next((each for each in records if each.offset >= offset), None)
            assert not found or expected is None or expected.offset in found or found[-1] < offset
        if records:
            target = self.random.choice(records).timestamp
            wanted = next(each for each in records if each.timestamp >= target)
            batch = wait_for(lambda: log.find_timestamp(target))
            assert batch is not None
            assert first_record_at(batch.read(), target) == (wanted.offset, wanted.timestamp)
            newest = wait_for(log.max_timestamp)
            assert newest is not None
            assert newest[0] == max(each.timestamp for each in records)


def run_history(make_world: Callable[..., Any], seed: int) -> None:
    """Does what the seed says to a new log, and looks at what is left."""
    history = History(make_world(CutFiles()), seed)
    often = [history.append] * 8 + [history.compact, history.wait, history.flush]
    rarely = [history.crash_while_compacting, history.crash, history.restart]
    try:
        for _ in range(STEPS):
            history.random.choice(often if history.random.random() < 0.9 else rarely)()
        history.compact()
        history.check()
    except BaseException:
        print(f"seed {seed}")
        raise
