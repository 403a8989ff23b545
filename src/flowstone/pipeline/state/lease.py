"""The lease of a pipeline: only one run at a time is active, on all machines together.

A run claims by writing a lease of its own and reading the topic to it. The earliest claim in the log that is alive
wins; a later one withdraws. A claim is alive if its last heartbeat is less than `DEAD_AFTER_S` older than the new
claim, by the broker's time. A claim that seems dead is watched for `WATCH_S`, because the broker may have been away
instead, and is then taken over. A run that was taken over learns of it by the granted lease after its own.

A run also holds a lock on a file in the pipeline's directory, which the kernel releases when the process dies. A claim
whose lock this process holds now is dead at once, so a restart after kill -9 on the same machine does not wait.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO
from uuid import uuid4

from flowstone.pipeline.errors import TryLater
from flowstone.pipeline.state.records import (
    PURPOSE_RUN,
    Kind,
    Lease,
    UnreadableRecord,
    decode,
    encode,
    key_of,
    split_key,
)
from flowstone.pipeline.state.topic import Entry, StateTopic

DEAD_AFTER_S = 15.0
WATCH_S = 5.0
WATCH_INTERVAL_S = 0.25
LOCK_FILE = ".flowstone/run.lock"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class FileLock:
    """A lock on a file that the kernel releases with the process; `identity` is the same for all who hold it."""

    def __init__(self, path: Path, holder: Mapping[str, object]) -> None:
        """Take the lock. Raises BlockingIOError if another process has it, and OSError if there can be no file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] = open(path, "a+")  # noqa: SIM115 - held until `release`
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise
        status = os.fstat(self._file.fileno())
        token = read_holder(path).get("token") or uuid4().hex
        self.identity = f"{_machine()}:{status.st_dev}:{status.st_ino}:{token}"
        self._file.truncate(0)
        self._file.write(json.dumps({**holder, "token": token}))
        self._file.flush()

    def release(self) -> None:
        self._file.close()


def read_holder(path: Path) -> dict[str, object]:
    """Return what the lock's last holder wrote about itself; nothing if that cannot be read."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


class Leases:
    """All leases of one pipeline in the topic, by run, with their claims' offsets and last heartbeats."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self.by_run: dict[str, Lease] = {}

    def apply(self, entries: Iterable[Entry]) -> None:
        for each in entries:
            pipeline, kind, run_id = split_key(each.key)
            if pipeline != self._pipeline or kind != Kind.LEASE:
                continue
            self.by_run.pop(run_id, None)
            if each.value is None:
                continue
            with suppress(UnreadableRecord):
                lease = decode(Lease, each.value)
                claimed = each.offset if lease.claim_offset < 0 else lease.claim_offset
                self.by_run[run_id] = replace(lease, claim_offset=claimed, heartbeat_ms=each.timestamp_ms)

    def other_than(self, run_id: str) -> list[Lease]:
        return [each for each in self.by_run.values() if each.run_id != run_id]


def claim(topic: StateTopic, leases: Leases, pipeline: str, wanted: Lease) -> tuple[Lease, list[Lease]]:
    """Return the granted lease, and those of dead runs, which it replaces. Raises TryLater if a run is alive."""
    key = key_of(pipeline, Kind.LEASE, wanted.run_id)
    topic.append([(key, encode(wanted))])
    leases.apply(topic.read())
    mine = leases.by_run[wanted.run_id]
    earlier = [each for each in leases.other_than(wanted.run_id) if each.claim_offset < mine.claim_offset]
    try:
        doubtful = []
        for each in earlier:
            if mine.lock and each.lock == mine.lock:
                continue
            if mine.heartbeat_ms - each.heartbeat_ms < DEAD_AFTER_S * 1000:
                raise refusal(pipeline, each)
            doubtful.append(each)
        _watch(topic, leases, pipeline, doubtful)
    except BaseException:
        topic.append([(key, None)])
        raise
    granted = replace(mine, is_granted=True)
    dead = [(key_of(pipeline, Kind.LEASE, each.run_id), None) for each in earlier]
    topic.append([(key, encode(granted)), *dead])
    return granted, earlier


def _watch(topic: StateTopic, leases: Leases, pipeline: str, doubtful: list[Lease]) -> None:
    """Raise TryLater as soon as one of the runs gives a sign of life."""
    until_s = time.monotonic() + (WATCH_S if doubtful else 0.0)
    while time.monotonic() < until_s:
        time.sleep(WATCH_INTERVAL_S)
        leases.apply(topic.read())
        for each in doubtful:
            now = leases.by_run.get(each.run_id)
            if now is not None and now.heartbeat_ms > each.heartbeat_ms:
                raise refusal(pipeline, now)


def refusal(pipeline: str, lease: Lease) -> TryLater:
    doing = "is run" if lease.purpose == PURPOSE_RUN else f"is being changed by `flowstone pipeline {lease.purpose}`"
    return TryLater(
        f"pipeline {pipeline} {doing} already, by process {lease.pid} on {lease.host} since {clock(lease.since_ms)}; "
        f"stop it first (a process that was killed counts as alive for {DEAD_AFTER_S:g} s)"
    )


def successor(leases: Leases, mine: Lease) -> Lease | None:
    """Return the granted lease of a run that took over from this one, or None."""
    later = [each for each in leases.other_than(mine.run_id) if each.claim_offset > mine.claim_offset]
    return next((each for each in later if each.is_granted), None)


def clock(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def host_name() -> str:
    return platform.node() or "localhost"


def _machine() -> str:
    """Return an id of this machine since its last boot."""
    with suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return host_name()
