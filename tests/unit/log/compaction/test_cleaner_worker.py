"""What the process that compacts answers to each request, without the process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flowstone.config import TopicConfig
from flowstone.log.compaction.cleaner import job_of, sealed_facts
from flowstone.log.compaction.cleaner_worker import Worker
from flowstone.log.compaction.plan import plan_compaction
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.segments.compaction_job import CLEANED_SUFFIX, CleanedSegment, CompactionJob
from flowstone.log.segments.file_handles import FileHandles
from flowstone.log.segments.partition_directory import PartitionDirectory
from flowstone.ports.clock import SimulatedClock
from flowstone.ports.system_files import SystemFiles
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import Record, build_batch

CONFIG = TopicConfig(cleanup_policy=("compact",), segment_bytes=2000, index_interval_bytes=200)
KEYS, RECORDS = 5, 60


@pytest.fixture
def job(tmp_path: Path) -> CompactionJob:
    """The compaction of a log of several segments, in which each key occurs again and again."""
    files, clock = SystemFiles(), SimulatedClock()
    directory = PartitionDirectory(files, str(tmp_path / "t-0"), exists=False)
    log = PartitionLog(TopicPartition("t", 0), bytes(16), CONFIG, clock, FileHandles(files, 16), directory)
    for number in range(RECORDS):
        record = Record(0, clock.time_ms(), b"key %d" % (number % KEYS), b"value" * 10)
        log.append(build_batch([record]), leader_epoch=0)
    task = log.durability.take_dirty()
    assert task is not None
    task.run()
    log.durability.flushed(task)
    plan = plan_compaction(sealed_facts(log), CONFIG, 0, log.log_end_offset, clock.time_ms())
    assert plan.is_due
    now_ms = clock.time_ms()
    made = job_of(log, plan, CONFIG, now_ms, latest_ms=now_ms, map_bytes_max=1 << 20, bytes_per_s=1e300)
    log.close()
    return made


def ask(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    """Ask as the broker does: both lines are JSON."""
    answer: dict[str, Any] = json.loads(json.dumps(worker.answer(json.loads(json.dumps(request)))))
    return answer


def test_a_job_is_begun_and_its_groups_are_cleaned_one_by_one(job: CompactionJob) -> None:
    worker = Worker()
    assert ask(worker, {"job": job.to_json()}) == {"mapped_end": job.end_offset}
    for number, group in enumerate(job.groups):
        cleaned = CleanedSegment(*ask(worker, {"clean": number})["cleaned"])
        assert (cleaned.base_offset, cleaned.end_offset) == (group[0].base_offset, group[-1].end_offset)
        assert 0 < cleaned.size_bytes < sum(segment.size_bytes for segment in group)
        assert (
            Path(job.directory, f"{cleaned.base_offset:020d}.log{CLEANED_SUFFIX}").stat().st_size == cleaned.size_bytes
        )


def test_the_end_of_a_job_frees_its_memory(job: CompactionJob) -> None:
    worker = Worker()
    ask(worker, {"job": job.to_json()})
    assert ask(worker, {}) == {}
    assert worker._job is None
    assert worker._compaction is None


def test_damage_is_answered_and_ends_the_job(job: CompactionJob) -> None:
    segment = Path(job.directory, f"{job.groups[0][0].base_offset:020d}.log")
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)
    worker = Worker()
    answer = ask(worker, {"job": job.to_json()})
    assert list(answer) == ["damage"]
    assert answer["damage"]
    assert (worker._job, worker._compaction) == (None, None)


def test_an_error_of_the_disk_is_answered_with_its_number_and_ends_the_job(job: CompactionJob) -> None:
    Path(job.directory, f"{job.groups[0][0].base_offset:020d}.log").unlink()
    worker = Worker()
    answer = ask(worker, {"job": job.to_json()})
    assert answer["errno"] == 2
    assert "No such file" in answer["error"]
    assert (worker._job, worker._compaction) == (None, None)


def test_a_job_is_the_same_after_its_way_through_json(job: CompactionJob) -> None:
    whole = job._replace(kept_offsets=(3, 5), kept_markers=((7, 1), (8, 2)))
    assert CompactionJob.from_json(json.loads(json.dumps(whole.to_json()))) == whole
