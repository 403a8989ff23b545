"""A million committed offsets: the time of a broker's start with them, and its event loop's latency afterwards."""

from __future__ import annotations

import os
import signal
import time
from array import array

from bench import group_wire, topics, wire
from bench.commits import await_coordinator
from bench.connection import Connection
from bench.load import Figures, percentile_ms
from bench.servers import Server, ServerError
from bench.topics import RoundFailed

TOPIC = "loaded"
GROUPS, PARTITIONS = 1000, 1000
PROBE_SECONDS = 10.0
PROBE_INTERVAL_SECONDS = 0.002
PROBES_PER_COMMIT = 10
STOP_TIMEOUT_SECONDS = 60
LOAD_TIMEOUT_SECONDS = 60
POLL_INTERVAL_SECONDS = 0.02


def run(server: Server, groups: int = GROUPS, partitions: int = PARTITIONS) -> Figures:
    """Measure on a running server, which is stopped and started again."""
    with Connection(server.address) as admin:
        topics.create(admin, TOPIC, partitions)
        await_coordinator(admin, _group(0))
        for number in range(groups):
            _commit(admin, number, [number] * partitions)
    _stop(server)
    started = time.monotonic()
    server.launch()
    server.wait_until_ready()
    ready_seconds = time.monotonic() - started
    with Connection(server.address) as admin:
        _wait_loaded(admin, groups)
        loaded_seconds = time.monotonic() - started
        for number in range(0, groups, groups // 10):
            _check(admin, number, partitions)
        latencies = _probe(admin)
    return {
        "offsets": groups * partitions,
        "ready_seconds": ready_seconds,
        "loaded_seconds": loaded_seconds,
        "rss_mb": server.rss_mb(),
        "loop_p50_ms": percentile_ms(latencies, 0.50),
        "loop_p99.9_ms": percentile_ms(latencies, 0.999),
        "loop_max_ms": max(latencies) * 1e3,
    }


def _group(number: int) -> str:
    return f"loaded-{number}"


def _commit(admin: Connection, number: int, offsets: list[int]) -> None:
    answer = admin.ask(group_wire.offset_commit(_group(number), TOPIC, offsets))
    errors = group_wire.offset_commit_errors(answer, TOPIC)
    if errors != {0}:
        raise RoundFailed(f"a commit of {len(offsets)} offsets was answered with error codes {errors}")


def _wait_loaded(admin: Connection, groups: int) -> None:
    """Wait until all groups are available, repeating the request for those that are still loading."""
    missing, deadline = list(range(groups)), time.monotonic() + LOAD_TIMEOUT_SECONDS
    while True:
        for number in missing:
            admin.send(group_wire.offset_fetch(_group(number), TOPIC, []))
        missing = [number for number in missing if group_wire.offset_fetch_error(_receive(admin))]
        if not missing:
            return
        if time.monotonic() > deadline:
            raise RoundFailed(f"{len(missing)} groups were not loaded after {LOAD_TIMEOUT_SECONDS} s")
        time.sleep(POLL_INTERVAL_SECONDS)


def _receive(admin: Connection) -> bytes:
    size = admin.receive_response()
    return bytes(admin.buffer[:size])


def _check(admin: Connection, number: int, partitions: int) -> None:
    answer = admin.ask(group_wire.offset_fetch(_group(number), TOPIC, range(partitions)))
    if group_wire.offset_fetch_response(answer, TOPIC) != [number] * partitions:
        raise RoundFailed(f"the offsets of {_group(number)} are not what was committed")


def _stop(server: Server) -> None:
    """Stop the server cleanly and keep its data."""
    os.kill(server.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        try:
            server.check_running()
        except ServerError:
            return
        time.sleep(POLL_INTERVAL_SECONDS)
    raise RoundFailed(f"the broker was still running after {STOP_TIMEOUT_SECONDS} s")


def _probe(admin: Connection) -> array[float]:
    """Return the latency of cheap requests, with some commits in between that create garbage to collect."""
    latencies, question = array("d"), wire.metadata()
    ends = time.monotonic() + PROBE_SECONDS
    while time.monotonic() < ends:
        if len(latencies) % PROBES_PER_COMMIT == 0:
            _commit(admin, 0, [len(latencies)] * 10)
        asked = time.monotonic()
        admin.ask(question)
        latencies.append(time.monotonic() - asked)
        time.sleep(PROBE_INTERVAL_SECONDS)
    return latencies
