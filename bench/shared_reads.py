"""Ten groups that read the same topic: data is stored once and read from disk once, and a group costs its commits."""

from __future__ import annotations

import os
import time
from pathlib import Path

from bench import group_wire, wire
from bench.commits import await_coordinator
from bench.connection import Connection
from bench.load import Figures
from bench.servers import Server
from bench.topics import RoundFailed, fresh_topic
from bench.workers import Load, produce

GROUPS = 10
SIZE_BYTES = 200_000_000
BATCH_BYTES = 1_000_000
VALUE_BYTES = 1000
ACKS_ALL = -1


def run(server: Server, size_bytes: int = SIZE_BYTES) -> Figures:
    batch = wire.record_batch(BATCH_BYTES, VALUE_BYTES, int(time.time() * 1000))
    load = Load(batch, size_bytes, ACKS_ALL, connections=1, partitions=1)
    with fresh_topic(server, load.partitions) as topic, Connection(server.address) as connection:
        produce(connection, load, topic, [0])
        await_coordinator(connection, f"{topic}-0")
        forget_cached(server.data, topic)
        stored_before = _stored_bytes(server.data)
        reads = [_read_as_group(server, connection, f"{topic}-{number}", topic, load) for number in range(GROUPS)]
        growth_bytes = _stored_bytes(server.data) - stored_before
    return {
        "topic_mb": load.total_bytes / 1e6,
        "disk_growth_kb": growth_bytes / 1e3,
        "first_group_read_from_disk_mb": reads[0][1] / 1e6,
        "other_groups_read_from_disk_mb": sum(read_bytes for _, read_bytes in reads[1:]) / 1e6,
        "first_group_mb_per_s": load.total_bytes / 1e6 / reads[0][0],
        "other_groups_mb_per_s": (GROUPS - 1) * load.total_bytes / 1e6 / sum(seconds for seconds, _ in reads[1:]),
    }


def _read_as_group(server: Server, connection: Connection, group: str, topic: str, load: Load) -> tuple[float, int]:
    """Read the topic with a commit per fetch; return the seconds and the bytes that the broker read from disk."""
    end_offset = load.requests_per_connection * load.batch.records
    disk_before, started = _read_bytes(server.pid), time.monotonic()
    offset = correlation = 0
    while offset < end_offset:
        connection.send(wire.fetch_request(topic, [(0, offset)], correlation))
        connection.receive_response()
        ((_partition, begin, end),) = wire.fetch_response(connection.buffer)
        whole_batches = (end - begin) // len(load.batch.data)
        if not whole_batches:
            raise RoundFailed(f"{group} read nothing at {offset} of {end_offset}")
        offset += whole_batches * load.batch.records
        correlation += 1
        errors = group_wire.offset_commit_errors(
            connection.ask(group_wire.offset_commit(group, topic, [offset])), topic
        )
        if errors != {0}:
            raise RoundFailed(f"a commit of {group} was answered with error codes {errors}")
    return time.monotonic() - started, _read_bytes(server.pid) - disk_before


def _read_bytes(pid: int) -> int:
    """Return the bytes that the process has read from the disk, not counting the page cache."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))


def _stored_bytes(folder: Path) -> int:
    """Return the used disk blocks, which include preallocated space."""
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


def forget_cached(folder: Path, topic: str) -> None:
    """Evict the topic's files from the page cache."""
    os.sync()
    for file in folder.glob(f"{topic}-*/*.log"):
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
