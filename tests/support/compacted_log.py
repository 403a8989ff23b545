"""A log that is compacted in this process, step by step, on files whose power can be cut between any two calls.

`Model` says in a few lines what must be left of it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from flowstone.config import TopicConfig
from flowstone.kernel.compaction import DELETE_HORIZON_FLAG
from flowstone.log.compaction.cleaner import job_of, sealed_facts
from flowstone.log.compaction.one_log import Compaction
from flowstone.log.compaction.plan import plan_compaction
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.segments.cached_reads import wait_for
from flowstone.log.workers.throttle import Throttle
from flowstone.ports.simulated_files import SimulatedFiles
from flowstone.wire.record_batch import decode_records, parse_header

UNLIMITED = 1e300
T = TypeVar("T")


class PowerCut(BaseException):
    """No code of ours may catch it: the machine is gone."""


class CutFiles(SimulatedFiles):
    """Files on a machine whose power goes before the `cut_in`-th call from now on; None: it stays."""

    cut_in: int | None = None
    calls = 0

    def check(self, operation: str) -> None:
        self.calls += 1
        if self.cut_in is not None:
            if self.cut_in == 0:
                raise PowerCut
            self.cut_in -= 1
        super().check(operation)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Of a coroutine that waits for nobody."""
    try:
        coroutine.send(None)
    except StopIteration as stopped:
        result: T = stopped.value
        return result
    raise AssertionError("it waits")


async def at_once(action: Callable[[], None]) -> None:
    action()


class Record(NamedTuple):
    offset: int
    batch: int  # the base offset of its batch
    timestamp: int
    key: bytes | None
    value: bytes | None


class Model:
    """What a compacted log holds: the last record of every key, and for a while the tombstones."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.horizons: dict[int, int] = {}  # by batch
        self.batch_ends: dict[int, int] = {}

    def compact(self, mapped_end: int, to_offset: int, now_ms: int, delete_retention_ms: int) -> None:
        """As it is when all segments below `to_offset` were compacted with a map that ends at `mapped_end`."""
        last = {record.key: record.offset for record in self.records if record.offset < mapped_end}

        def stays(record: Record) -> bool:
            if record.offset >= mapped_end or record.batch >= to_offset:
                return True
            is_expired = record.value is None and self.horizons.get(record.batch, now_ms + 1) <= now_ms
            return record.key is not None and last[record.key] == record.offset and not is_expired

        self.records = [record for record in self.records if stays(record)]
        for record in self.records:
            if record.value is None and record.batch < to_offset and self.batch_ends[record.batch] < mapped_end:
                self.horizons.setdefault(record.batch, now_ms + delete_retention_ms)

    def live_horizons(self) -> dict[int, int]:
        """Of batches that have records left."""
        batches = {record.batch for record in self.records}
        return {batch: horizon for batch, horizon in self.horizons.items() if batch in batches}

    def copy(self) -> Model:
        copied = Model()
        copied.records, copied.horizons = list(self.records), dict(self.horizons)
        copied.batch_ends = self.batch_ends
        return copied


class CompactionRun:
    """One round of compaction of a log, group by group."""

    def __init__(self, log: PartitionLog, config: TopicConfig, now_ms: int, map_bytes_max: int = 1 << 20) -> None:
        self.log, self.now_ms = log, now_ms
        facts = wait_for(lambda: sealed_facts(log)) if len(log.segments) > 1 else []
        self.plan = plan_compaction(facts, config, log.first_dirty_offset, log.recovery_point, now_ms)
        self.job = job_of(
            log,
            self.plan,
            config,
            now_ms,
            latest_ms=now_ms,
            map_bytes_max=map_bytes_max,
            bytes_per_s=UNLIMITED,
        )
        self.mapped_end = self.plan.first_dirty_offset

    @property
    def is_due(self) -> bool:
        return self.plan.is_due

    @property
    def ends(self) -> list[int]:
        """Up to where the log may have been compacted, if it ended before it was done."""
        return [0, *(group[-1].end_offset for group in self.job.groups if group[0].base_offset < self.mapped_end)]

    def finish(self) -> None:
        compaction = Compaction(self.log.files, self.job, Throttle(UNLIMITED))
        self.mapped_end = compaction.build_map()
        for group in self.job.groups:
            if group[0].base_offset < self.mapped_end:
                bases = {source.base_offset for source in group}
                old = [segment for segment in self.log.segments if segment.base_offset in bases]
                for path in run(self.log.replace_segments(old, compaction.clean(group), at_once)):
                    self.log.files.remove(path)
        self.log.first_dirty_offset = self.mapped_end


def stored_records(batches: list[bytes]) -> list[Record]:
    return [
        Record(record.offset, parse_header(batch).base_offset, record.timestamp, record.key, record.value)
        for batch in batches
        for record in decode_records(batch)
    ]


def stored_horizons(batches: list[bytes]) -> dict[int, int]:
    headers = [parse_header(batch) for batch in batches]
    return {each.base_offset: each.base_timestamp for each in headers if each.attributes & DELETE_HORIZON_FLAG}


def check_order(batches: list[bytes], end_offset: int) -> None:
    """Batches in order, and the last one where the log ends."""
    headers = [parse_header(batch) for batch in batches]
    assert all(first.next_offset <= second.base_offset for first, second in pairwise(headers))
    assert not headers or headers[-1].next_offset == end_offset
