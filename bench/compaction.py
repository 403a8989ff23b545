"""Compaction speed per core: our worker process against Kafka's cleaner thread, on the same segments.

    python -m bench.compaction                  # 100 B and 1 KB, none and lz4, three rounds each
    python -m bench.compaction --mb 1300 --keys 10000000 --map-mb 64 --value-bytes 100 --codecs none   # several rounds

A topic is filled on a running Kafka that is configured not to compact it yet. Its segments are copied; then Kafka
compacts, and the processor time of its cleaner thread is read from the kernel until it has finished. Our worker
compacts the copy. Kafka's garbage collector and compiler threads are not counted, and the first round, in which its
cleaner is compiled, is not shown. Throughput is bytes of the old segments per second of processor time.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from bench import processes
from bench.servers import Kafka, disk_folder
from flowstone.log.compaction.cleaner_process import CompactorProcess
from flowstone.log.segments.compaction_job import CompactionJob, SourceSegment

SEGMENT_BYTES = 16 << 20
MAP_BYTES = 128 << 20
NEVER_MS = 10**15
POLL_S = 0.02
CLEANER_THREAD = "kafka-log-clean"  # as much of its name as the kernel keeps
CLEANER_TIMEOUT_S = 300


class Case(NamedTuple):
    value_bytes: int
    codec: str
    log_bytes: int
    key_count: int


class Figures(NamedTuple):
    mb_per_cpu_s: float
    left_mb: float
    rounds: int


def fill(address: str, topic: str, case: Case) -> None:
    """Write random keys with values that compress about as well as text."""
    producer = Producer(
        {
            "bootstrap.servers": address,
            "compression.type": case.codec,
            "linger.ms": 50,
            "batch.size": 65536,
            "queue.buffering.max.messages": 200_000,
            "acks": "all",
        }
    )
    rng = random.Random(1)
    words = [bytes(rng.choices(b"abcdefghijklmnop", k=16)) for _ in range(64)]
    for _ in range(case.log_bytes // (case.value_bytes + 20)):
        value = b"".join(rng.choices(words, k=case.value_bytes // 16 + 1))[: case.value_bytes]
        while True:
            try:
                producer.produce(topic, value, b"key-%012d" % rng.randrange(case.key_count), partition=0)
                break
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
    producer.flush()


class KafkaCleaner:
    """A Kafka broker that compacts a topic on request."""

    def __init__(self, server: Kafka) -> None:
        self._server = server
        self._admin = AdminClient({"bootstrap.servers": server.address})

    def create(self, topic: str) -> None:
        config = {
            "cleanup.policy": "compact",
            "segment.bytes": str(SEGMENT_BYTES),
            "min.compaction.lag.ms": str(NEVER_MS),
            "min.cleanable.dirty.ratio": "0.01",
        }
        for made in self._admin.create_topics([NewTopic(topic, 1, config=config)]).values():
            made.result()

    def compact(self, topic: str) -> float:
        """Compact the topic; return the processor seconds of the cleaner thread."""
        before = self._cpu_s()
        entry = ConfigEntry("min.compaction.lag.ms", "0", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        for altered in self._admin.incremental_alter_configs([resource]).values():
            altered.result()
        deadline = time.monotonic() + CLEANER_TIMEOUT_S
        last = self._first_sealed_end(topic)
        while self._cleaned_to(topic) < last:
            if time.monotonic() > deadline:
                raise TimeoutError(f"Kafka's cleaner did not finish within {CLEANER_TIMEOUT_S} s")
            time.sleep(POLL_S)
        return self._cpu_s() - before

    def _first_sealed_end(self, topic: str) -> int:
        return max(int(path.stem) for path in self._server.data.glob(f"{topic}-0/*.log"))

    def _cleaned_to(self, topic: str) -> int:
        checkpoint = self._server.data / "cleaner-offset-checkpoint"
        lines = checkpoint.read_text().splitlines()[2:] if checkpoint.exists() else []
        return max((int(line.split()[2]) for line in lines if line.split()[:2] == [topic, "0"]), default=0)

    def _cpu_s(self) -> float:
        for task in Path(f"/proc/{self._server.pid}/task").iterdir():
            if (task / "comm").read_text().strip() == CLEANER_THREAD:
                fields = (task / "stat").read_text().rpartition(")")[2].split()
                return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        raise RuntimeError(f"Kafka has no thread {CLEANER_THREAD}")


async def compact_copy(folder: Path, map_bytes: int) -> tuple[float, int, int]:
    """Compact the copy with our worker; return its processor seconds, the remaining bytes and the number of rounds."""
    compactor = CompactorProcess()
    try:
        await compactor.end()  # starts the process
        assert compactor.pid is not None
        before = processes.cpu_seconds(compactor.pid)
        bases = sorted(int(path.stem) for path in folder.glob("*.log"))
        first_dirty, rounds, left = bases[0], 0, 0
        while first_dirty < bases[-1]:
            rounds += 1
            job = _job(folder, bases, first_dirty, map_bytes)
            first_dirty, left = await compactor.begin(job), 0
            for number, group in enumerate(job.groups):
                if group[0].base_offset < first_dirty:
                    cleaned = await compactor.clean(number)
                    left += cleaned.size_bytes
                    _put_in_place(folder, cleaned.base_offset)
                else:
                    left += sum(source.size_bytes for source in group)
            await compactor.end()
        return processes.cpu_seconds(compactor.pid) - before, left, rounds
    finally:
        compactor.stop()


def _job(folder: Path, bases: list[int], first_dirty: int, map_bytes: int) -> CompactionJob:
    sources = [
        SourceSegment(base, following, (folder / f"{base:020d}.log").stat().st_size)
        for base, following in pairwise(bases)
    ]
    return CompactionJob(
        directory=str(folder),
        groups=tuple((source,) for source in sources),
        first_dirty_offset=first_dirty,
        end_offset=bases[-1],
        kept_offsets=(),
        kept_markers=(),
        now_ms=0,
        delete_horizon_ms=0,
        index_interval_bytes=4096,
        map_bytes_max=map_bytes,
        bytes_per_s=sys.float_info.max,
    )


def _put_in_place(folder: Path, base_offset: int) -> None:
    for path in folder.glob(f"{base_offset:020d}.*.cleaned"):
        path.rename(path.with_suffix(""))


def run_case(kafka: KafkaCleaner, data: Path, case: Case, rounds: int, map_bytes: int) -> tuple[Figures, Figures]:
    """Run a case on both; return the best of the rounds after the first."""
    best: list[Figures | None] = [None, None]
    for number in range(rounds + 1):
        topic = f"c-{case.value_bytes}-{case.codec}-{case.key_count}-{number}"
        kafka.create(topic)
        fill(kafka._server.address, topic, case)
        folder = Path(shutil.copytree(data / f"{topic}-0", disk_folder() / f"bench-compaction-{os.getpid()}"))
        try:
            sealed = sorted(folder.glob("*.log"))[:-1]
            total_bytes = sum(path.stat().st_size for path in sealed)
            their_cpu_s = kafka.compact(topic)
            their_bytes = sum(path.stat().st_size for path in sorted((data / f"{topic}-0").glob("*.log"))[:-1])
            our_cpu_s, our_bytes, our_rounds = asyncio.run(compact_copy(folder, map_bytes))
        finally:
            shutil.rmtree(folder)
        found = (
            Figures(total_bytes / 1e6 / our_cpu_s, our_bytes / 1e6, our_rounds),
            Figures(total_bytes / 1e6 / their_cpu_s, their_bytes / 1e6, 0),
        )
        for at, figures in enumerate(found):
            known = best[at]
            if number and (known is None or figures.mb_per_cpu_s > known.mb_per_cpu_s):
                best[at] = figures
    ours, theirs = best
    assert ours is not None
    assert theirs is not None
    return ours, theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=256, help="bytes of records per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--value-bytes", type=int, nargs="*", default=(100, 1000))
    parser.add_argument("--codecs", nargs="*", default=("none", "lz4"))
    parser.add_argument("--keys", type=int, default=0, help="distinct keys; 0: a fifth of the records")
    parser.add_argument("--map-mb", type=int, default=MAP_BYTES >> 20)
    options = parser.parse_args()
    settings = {
        "log.cleaner.backoff.ms": "100",
        "log.cleaner.threads": "1",
        "log.cleaner.dedupe.buffer.size": str(options.map_mb << 20),
        "log.retention.check.interval.ms": "600000",
    }
    print("| records | codec | keys | Flowstone MB/s per core | Kafka | ratio | left MB, ours and theirs | rounds |")
    print("|---|---|---|---|---|---|---|---|")
    with Kafka(settings) as server:
        kafka = KafkaCleaner(server)
        for value_bytes in options.value_bytes:
            for codec in options.codecs:
                log_bytes = options.mb << 20
                key_count = options.keys or log_bytes // (value_bytes + 20) // 5
                case = Case(value_bytes, codec, log_bytes, key_count)
                ours, theirs = run_case(kafka, server.data, case, options.rounds, options.map_mb << 20)
                print(
                    f"| {value_bytes} B | {codec} | {key_count} | {ours.mb_per_cpu_s:.0f} | {theirs.mb_per_cpu_s:.0f} "
                    f"| {ours.mb_per_cpu_s / theirs.mb_per_cpu_s:.1f} | {ours.left_mb:.0f}, {theirs.left_mb:.0f} "
                    f"| {ours.rounds} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
