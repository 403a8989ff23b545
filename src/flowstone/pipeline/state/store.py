"""`StateStore`: reads and writes the state of one pipeline.

What a checkpoint depends on (declaration, positions, checkpoints, points) is written with acks=all before a method
returns; otherwise it raises PipelineError. Progress and errors go through the `Run`. One thread uses a store.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote
from uuid import uuid4

from flowstone.client import ClientError
from flowstone.errors import ApiError
from flowstone.pipeline.errors import TryLater
from flowstone.pipeline.state.lease import LOCK_FILE, FileLock, claim, clock, host_name, read_holder
from flowstone.pipeline.state.records import (
    PURPOSE_RUN,
    RUNS_MAX,
    Checkpoint,
    Declaration,
    Kind,
    Lease,
    Positions,
    RunRecord,
    StateRecord,
    encode,
    key_of,
)
from flowstone.pipeline.state.run import Run
from flowstone.pipeline.state.topic import DEADLINE_S, STATE_TOPIC, StateTopic
from flowstone.pipeline.state.view import PipelineState, StateReader

POINTS_MAX = 20
KILLED = "died without a sign"


class StateStore:
    def __init__(self, bootstrap: str, pipeline: str, *, deadline_s: float = DEADLINE_S) -> None:
        """Create the store without connecting. Raises PipelineError if `bootstrap` is malformed."""
        self._bootstrap, self._pipeline = bootstrap, pipeline
        self._topic = StateTopic(bootstrap, deadline_s=deadline_s)
        self._reader = StateReader(pipeline)
        self._is_there = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._topic.close()

    def load(self) -> PipelineState:
        """Return the current state, which is empty for a pipeline that never ran. Raises PipelineError."""
        with self._explained("read"):
            if self._is_there or self._topic.exists:
                self._is_there = True
                self._reader.apply(self._topic.read())
        return self._reader.state()

    def positions(self, query: str) -> Mapping[str, str] | None:
        """Return where the query's sources started, or None if that is not decided yet."""
        state = self.load()
        state.check_readable(Kind.POSITIONS, query)
        found = state.positions.get(query)
        return None if found is None else found.sources

    def store_positions(self, query: str, sources: Mapping[str, str]) -> None:
        self.write({(Kind.POSITIONS, query): Positions(dict(sources), _now_ms())})

    def store_declaration(self, declaration: Declaration) -> None:
        self.write({(Kind.DECLARATION, ""): replace(declaration, stored_at_ms=_now_ms())})

    def checkpoint(self, query: str, root: str) -> Checkpoint:
        """Return the query's checkpoint; the first call gives the query a new directory below `root`."""
        state = self.load()
        state.check_readable(Kind.CHECKPOINT, query)
        found = state.checkpoints.get(query)
        if found is None:
            found = new_checkpoint(query, root)
            self.write({(Kind.CHECKPOINT, query): found})
        return found

    def write(self, records: Mapping[tuple[Kind, str], StateRecord | None]) -> None:
        """Write records together; None deletes one. Raises PipelineError if the broker does not confirm them."""
        encoded = [
            (key_of(self._pipeline, kind, id), None if record is None else encode(record))
            for (kind, id), record in records.items()
        ]
        with self._explained("written"):
            self._ensure()
            self._topic.append(encoded)

    def begin_run(self, directory: Path | None, *, spec_hash: str = "", master: str = "", purpose: str = "run") -> Run:
        """Return a run that is the only one of the pipeline. Raises PipelineError if another one is alive.

        `directory` is the pipeline's directory, for the lock file. Without it, or if it is not writable, no lock file
        is used.
        """
        now_ms = _now_ms()
        run_id = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now_ms / 1000))}-{uuid4().hex[:8]}"
        lock = self._lock(directory, now_ms) if directory is not None else None
        wanted = Lease(run_id, host_name(), os.getpid(), now_ms, lock.identity if lock else "", purpose)
        try:
            with self._explained("written"):
                self._ensure()
                self._reader.apply(self._topic.read())
                granted, dead = claim(self._topic, self._reader.leases, self._pipeline, wanted)
                return self._begin(granted, dead, lock, spec_hash, master)
        except BaseException:
            if lock is not None:
                lock.release()
            raise

    def _begin(self, lease: Lease, dead: list[Lease], lock: FileLock | None, spec_hash: str, master: str) -> Run:
        state = self._reader.state()
        last_heartbeats = {each.run_id: each.heartbeat_ms for each in dead}
        died = {
            (Kind.RUN, str(each.number % RUNS_MAX)): replace(
                each, ended_at_ms=last_heartbeats.get(each.run_id, each.started_at_ms), reason=KILLED
            )
            for each in state.runs
            if not each.ended_at_ms
        }
        number = max((each.number for each in state.runs), default=0) + 1
        record = RunRecord(number, lease.run_id, lease.host, lease.pid, lease.since_ms, spec_hash, master)
        records: dict[tuple[Kind, str], StateRecord | None] = dict(died)
        if lease.purpose == PURPOSE_RUN:
            records[Kind.RUN, str(number % RUNS_MAX)] = record
        if records:
            self.write(records)
        errors = max((each.number for each in state.errors), default=-1) + 1
        return Run(self._bootstrap, self._pipeline, lease, self._reader.leases, record, errors, lock)

    def _lock(self, directory: Path, now_ms: int) -> FileLock | None:
        path = directory / LOCK_FILE
        try:
            return FileLock(path, {"host": host_name(), "pid": os.getpid(), "since": clock(now_ms)})
        except BlockingIOError:
            holder = read_holder(path)
            raise TryLater(
                f"pipeline {self._pipeline} is run already, by process {holder.get('pid', '?')} on "
                f"{holder.get('host', 'this machine')} since {holder.get('since', '?')}; stop it first"
            ) from None
        except OSError:  # a directory that is not writable, or a file system without locks
            return None

    def _ensure(self) -> None:
        if not self._is_there:
            self._topic.ensure()
            self._is_there = True

    @contextmanager
    def _explained(self, done: str) -> Iterator[None]:
        try:
            yield
        except (ClientError, ApiError) as error:
            raise TryLater(
                f"the state of pipeline {self._pipeline} cannot be {done} (topic {STATE_TOPIC} at {self._bootstrap}): "
                f"{error}; check that the broker is running"
            ) from error


def new_checkpoint(query: str, root: str) -> Checkpoint:
    """Return a checkpoint that no other has the directory of."""
    now_ms = _now_ms()
    id = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now_ms / 1000))}-{uuid4().hex[:6]}"
    return Checkpoint(f"{root.rstrip('/')}/{quote(query, safe='')}/{id}", id, now_ms)


def _now_ms() -> int:
    return int(time.time() * 1000)
