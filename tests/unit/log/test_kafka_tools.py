"""Kafka's own dump tool reads a log directory of ours without complaint."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest
from scripts.fetch_kafka import cache_folder

from flowstone.config import TopicConfig
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.log.segments.file_handles import FileHandles
from flowstone.log.segments.partition_directory import PartitionDirectory
from flowstone.ports.clock import SimulatedClock
from flowstone.ports.system_files import SystemFiles
from flowstone.types import TopicPartition
from flowstone.wire.compression import Codec
from flowstone.wire.record_batch import Record, build_batch
from tests.support.compacted_log import CompactionRun
from tests.support.transactional_log import TransactionWriter

INDEXES = (".index", ".timeindex")
DUMP = "org.apache.kafka.tools.DumpLogSegments"

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None or not cache_folder().is_dir(),
    reason="needs java and a fetched Kafka (scripts/fetch_kafka.py)",
)


def write_log(folder: Path) -> None:
    """Four segments of batches of all codecs, timestamps out of order, an idempotent producer, three leader epochs."""
    generator, clock, files = random.Random(1), SimulatedClock(), SystemFiles()
    log = PartitionLog(
        TopicPartition("dump", 0),
        bytes(range(16)),
        TopicConfig(segment_bytes=200_000),
        clock,
        FileHandles(files, 100),
        PartitionDirectory(files, str(folder / "dump-0"), exists=False),
    )
    sequence = 0
    for number in range(600):
        records = [
            Record(at, clock.time_ms() - generator.randint(0, 2000), b"key", generator.randbytes(100))
            for at in range(generator.randint(1, 20))
        ]
        codec = generator.choice(list(Codec))
        log.append(
            build_batch(records, codec=codec, producer_id=7, producer_epoch=0, base_sequence=sequence),
            leader_epoch=number // 200,
        )
        sequence += len(records)
        clock.advance(0.3)
    assert len(log.segments) == 4
    task = log.closing_task()
    assert task is not None
    task.run()


def dump(folder: Path, *options: str, suffixes: tuple[str, ...] = (".log", *INDEXES)) -> str:
    files = sorted(str(path) for path in folder.glob("dump-0/*") if path.suffix in suffixes)
    command = ["java", "-Xmx256m", "-cp", f"{cache_folder()}/*", DUMP, *options, "--files", ",".join(files)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=90, check=True)
    return done.stdout


def test_kafkas_dump_tool_finds_nothing_wrong(tmp_path: Path) -> None:
    write_log(tmp_path)
    text = dump(tmp_path)
    assert text.count("isvalid: true") == 600
    for complaint in ("isvalid: false", "Mismatches", "Index timestamp mismatch", "out of order", "Found"):
        assert complaint.lower() not in text.lower()


def test_kafkas_sanity_check_passes_every_index(tmp_path: Path) -> None:
    write_log(tmp_path)
    assert dump(tmp_path, "--index-sanity-check", suffixes=INDEXES).count("passed sanity check") == 8


def compact_log(folder: Path) -> None:
    """A log of tombstones and few keys, every codec, an idempotent producer, compacted in two rounds."""
    generator, clock, files = random.Random(1), SimulatedClock(), SystemFiles()
    config = TopicConfig(segment_bytes=60_000, cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0)
    directory = PartitionDirectory(files, str(folder / "dump-0"), exists=False)
    log = PartitionLog(TopicPartition("dump", 0), bytes(range(16)), config, clock, FileHandles(files, 100), directory)
    sequence = 0
    for number in range(400):
        records = [
            Record(at, clock.time_ms(), b"key %d" % generator.randrange(200), generator.choice([None, b"value" * 20]))
            for at in range(generator.randint(1, 20))
        ]
        codec = generator.choice(list(Codec))
        log.append(
            build_batch(records, codec=codec, producer_id=7, producer_epoch=0, base_sequence=sequence), leader_epoch=0
        )
        sequence += len(records)
        if number in (200, 399):
            task = log.durability.take_dirty()
            assert task is not None
            task.run()
            log.durability.flushed(task)
            CompactionRun(log, config, clock.time_ms()).finish()
    task = log.closing_task()
    assert task is not None
    task.run()


def test_kafkas_dump_tool_reads_compacted_segments(tmp_path: Path) -> None:
    compact_log(tmp_path)
    text = dump(tmp_path)
    assert "deleteHorizonMs: OptionalLong[" in text
    assert "count: 0 " in text  # the last batch of a segment may be empty
    assert text.count("isvalid: true") > 20
    for complaint in ("isvalid: false", "Mismatches", "Index timestamp mismatch", "out of order"):
        assert complaint.lower() not in text.lower()
    assert dump(tmp_path, "--index-sanity-check", suffixes=INDEXES).count("passed sanity check") >= 4


def test_kafkas_dump_tool_reads_transactions(tmp_path: Path) -> None:
    clock, files = SimulatedClock(), SystemFiles()
    directory = PartitionDirectory(files, str(tmp_path / "dump-0"), exists=False)
    config = TopicConfig(segment_bytes=4000)
    log = PartitionLog(TopicPartition("dump", 0), bytes(range(16)), config, clock, FileHandles(files, 100), directory)
    writer = TransactionWriter(log, 1)
    for _ in range(200):
        writer.rng.choice([writer.write_transactional, writer.write_plain, writer.end_transaction])()
    task = log.closing_task()
    assert task is not None
    task.run()
    is_open, aborted = writer.model.transactions()
    assert is_open
    assert aborted

    told = dump(tmp_path, "--print-data-log", suffixes=(".log", ".txnindex", ".snapshot"))

    for complaint in ("isvalid: false", "Mismatches", "exception", "error"):
        assert complaint.lower() not in told.lower()
    assert told.count("endTxnMarker: ABORT coordinatorEpoch: 3") == len(aborted)
    for producer_id, first_offset, marker_offset in aborted:
        assert f"producerId: {producer_id} firstOffset: {first_offset} lastOffset: {marker_offset} " in told
    for first_offset in is_open.values():
        assert f"currentTxnFirstOffset: OptionalLong[{first_offset}]" in told
