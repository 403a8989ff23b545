"""Many groups that commit once a second, each over its own connection: the broker's cost and the latency.

One process sends at equal intervals and reads all connections. A late response does not delay commits of other groups;
its own group waits for it, as a consumer would.
"""

from __future__ import annotations

import selectors
import time
from array import array
from contextlib import ExitStack

from bench import group_wire, wire
from bench.connection import Connection
from bench.load import Figures, percentile_ms
from bench.topics import RoundFailed, Target, fresh_topic

COORDINATOR_TIMEOUT_SECONDS = 30
POLL_INTERVAL_SECONDS = 0.02
WARM_UP_SHARE = 0.2
COMMIT_TIMEOUT_SECONDS = 10


def run_round(target: Target, groups: int, partitions: int, seconds: float) -> Figures:
    with fresh_topic(target, partitions) as topic, ExitStack() as stack:
        names = [f"{topic}-{number}" for number in range(groups)]
        with Connection(target.address) as admin:
            await_coordinator(admin, names[0])
        committers = [_Committer(stack.enter_context(Connection(target.address)), name, topic, partitions)
                      for name in names]  # fmt: skip
        _commit_evenly(committers, seconds * WARM_UP_SHARE)
        cpu_before, started = target.cpu_seconds(), time.monotonic()
        latencies = _commit_evenly(committers, seconds)
        cpu, elapsed = target.cpu_seconds() - cpu_before, time.monotonic() - started
    return {
        "commits_per_s": len(latencies) / elapsed,
        "cpu_percent_of_a_core": 100 * cpu / elapsed,
        "cpu_us_per_commit": 1e6 * cpu / len(latencies),
        "commit_p50_ms": percentile_ms(latencies, 0.50),
        "commit_p99_ms": percentile_ms(latencies, 0.99),
    }


def await_coordinator(admin: Connection, group: str) -> None:
    """Wait until the offsets topic, which the first coordinator lookup creates, is loaded."""
    deadline = time.monotonic() + COORDINATOR_TIMEOUT_SECONDS
    while True:
        error = group_wire.find_coordinator_error(admin.ask(group_wire.find_coordinator(group)))
        if not error:
            error = group_wire.offset_fetch_error(admin.ask(group_wire.offset_fetch(group, "t", [])))
        if not error:
            return
        if error not in group_wire.COORDINATOR_ERRORS or time.monotonic() > deadline:
            raise RoundFailed(f"the coordinator of {group} answers with error code {error}")
        time.sleep(POLL_INTERVAL_SECONDS)


class _Committer:
    def __init__(self, connection: Connection, group: str, topic: str, partitions: int) -> None:
        self.connection = connection
        self._group, self._topic, self._partitions = group, topic, partitions
        self._offset = 0
        self.sent_at: float | None = None

    def send(self) -> None:
        self._offset += 1
        self.sent_at = time.monotonic()
        offsets = [self._offset] * self._partitions
        self.connection.send(group_wire.offset_commit(self._group, self._topic, offsets))

    def receive(self) -> float:
        assert self.sent_at is not None
        size = self.connection.receive_response()
        latency = time.monotonic() - self.sent_at
        errors = group_wire.offset_commit_errors(bytes(self.connection.buffer[:size]), self._topic)
        if errors != {0}:
            raise wire.UnexpectedResponse(f"a commit of {self._group} was answered with error codes {errors}")
        self.sent_at = None
        return latency


def _commit_evenly(committers: list[_Committer], seconds: float) -> array[float]:
    """Commit once a second for every group; return the latencies."""
    latencies = array("d")
    with selectors.DefaultSelector() as selector:
        for committer in committers:
            selector.register(committer.connection, selectors.EVENT_READ, committer)
        started, count = time.monotonic(), int(len(committers) * seconds)
        sent = 0
        while len(latencies) < count:
            due_in = started + sent / len(committers) - time.monotonic()
            if sent < count and due_in <= 0:
                committer = committers[sent % len(committers)]
                if committer.sent_at is not None:
                    raise RoundFailed("a commit was not answered within a second")
                committer.send()
                sent += 1
                continue
            for key, _events in selector.select(due_in if sent < count else COMMIT_TIMEOUT_SECONDS):
                latencies.append(key.data.receive())
            if sent == count and time.monotonic() > started + seconds + COMMIT_TIMEOUT_SECONDS:
                raise RoundFailed(f"{count - len(latencies)} commits were never answered")
    return latencies
