"""One round of load on one broker: a topic of its own is created, produced to, fetched back and deleted.

`run_round` starts a process per connection (`workers`), gives them the word for each phase and reads the broker's CPU
time around it. A round either returns figures that are complete (each response without error, each offset fetched back
with the bytes it was sent with) or raises `RoundFailed`: there is no partial figure.
"""

from __future__ import annotations

import multiprocessing
import os
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection as Pipe
from typing import Any, Protocol

from bench import wire, workers
from bench.connection import Connection

WORKER_EXIT_TIMEOUT_SECONDS = 10
TOPIC_READY_TIMEOUT_SECONDS = 30
POLL_INTERVAL_SECONDS = 0.02

BROKER_TROUBLE = (OSError, wire.UnexpectedResponse, struct.error)


class RoundFailed(Exception):
    """An error code, a lost offset or a broker that does not answer: the round has no figures."""


class Target(Protocol):
    """What the load needs of a running broker."""

    @property
    def address(self) -> str: ...
    def cpu_seconds(self) -> float: ...
    def wait_until_deleted(self, topic: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Figures:
    """One round, measured. Gigabytes are 10^9 bytes of record batches."""

    produce_mb_per_s: float
    produce_requests_per_s: float
    produce_p50_ms: float
    produce_p99_ms: float
    produce_cpu_s_per_gb: float
    fetch_mb_per_s: float
    fetch_requests_per_s: float
    fetch_p50_ms: float
    fetch_p99_ms: float
    fetch_cpu_s_per_gb: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def run_round(target: Target, load: workers.Load) -> Figures:
    topic = f"bench{time.time_ns()}"
    try:
        with Connection(target.address) as admin:
            wire.topic_response("CreateTopics", admin.ask(wire.create_topic(topic, load.partitions)))
            try:
                _wait_until_led(admin, topic, load.partitions)
                figures = _measure(target, load, topic)
            except RoundFailed:
                with suppress(*BROKER_TROUBLE):  # what failed the round is the news, not what follows from it
                    _recycle(admin, target, topic)
                raise
            _recycle(admin, target, topic)
            return figures
    except BROKER_TROUBLE as error:
        raise RoundFailed(f"{type(error).__name__}: {error}") from error


def _recycle(admin: Connection, target: Target, topic: str) -> None:
    """Deleted data gives its page-cache memory back: the next round must not pay for fresh memory."""
    wire.topic_response("DeleteTopics", admin.ask(wire.delete_topic(topic)))
    target.wait_until_deleted(topic)
    os.sync()


def _wait_until_led(admin: Connection, topic: str, partitions: int) -> None:
    """CreateTopics is answered once the topic is decided on; its partitions serve a moment later."""
    deadline = time.monotonic() + TOPIC_READY_TIMEOUT_SECONDS
    while True:
        errors = wire.list_offsets_errors(admin.ask(wire.list_offsets(topic, range(partitions))))
        if len(errors) == partitions and not any(errors):
            return
        if time.monotonic() > deadline:
            raise RoundFailed(
                f"topic {topic} is not served {TOPIC_READY_TIMEOUT_SECONDS} s after its creation: {errors}"
            )
        time.sleep(POLL_INTERVAL_SECONDS)


def _measure(target: Target, load: workers.Load, topic: str) -> Figures:
    context = multiprocessing.get_context("fork")
    pipes, processes = [], []
    try:
        for index in range(load.connections):
            ours, theirs = context.Pipe()
            arguments = (theirs, target.address, load, topic, index)
            processes.append(context.Process(target=workers.work, args=arguments, daemon=True))
            processes[-1].start()
            theirs.close()  # a process that dies then reads as the end of its pipe
            pipes.append(ours)
        _collect(pipes)  # connected
        cpu_before = target.cpu_seconds()
        produced = _collect(_go(pipes))
        cpu_between = target.cpu_seconds()
        fetched = _collect(_go(pipes))
        cpu_after = target.cpu_seconds()
        for process in processes:
            process.join(WORKER_EXIT_TIMEOUT_SECONDS)
    finally:
        for process in processes:
            process.kill()  # those of a failed round wait for a word that will not come
            process.join()
        for pipe in pipes:
            pipe.close()
    return Figures(
        *_rates(produced, load.total_bytes), (cpu_between - cpu_before) * 1e9 / load.total_bytes,
        *_rates(fetched, load.total_bytes), (cpu_after - cpu_between) * 1e9 / load.total_bytes,
    )  # fmt: skip


def _go(pipes: Sequence[Pipe[Any, Any]]) -> Sequence[Pipe[Any, Any]]:
    for pipe in pipes:
        pipe.send(None)
    return pipes


def _collect(pipes: Sequence[Pipe[Any, Any]]) -> list[workers.Phase]:
    """One answer from every worker; the first that failed or is late fails the round."""
    deadline = time.monotonic() + workers.PHASE_TIMEOUT_SECONDS
    phases = []
    for pipe in pipes:
        if not pipe.poll(max(0.0, deadline - time.monotonic())):
            raise RoundFailed(f"a connection was not done after {workers.PHASE_TIMEOUT_SECONDS} s")
        try:
            answer = pipe.recv()
        except EOFError:
            raise RoundFailed("a connection's process died") from None
        if isinstance(answer, str):
            raise RoundFailed(answer)
        phases.append(answer)
    return phases


def _rates(phases: list[workers.Phase], size_bytes: int) -> tuple[float, float, float, float]:
    """MB/s, requests/s, and the median and 99th percentile of a request's latency in ms."""
    seconds = max(phase.ended for phase in phases) - min(phase.started for phase in phases)
    latencies = sorted(latency for phase in phases for latency in phase.latencies)
    p50, p99 = (latencies[int(len(latencies) * share)] * 1e3 for share in (0.50, 0.99))
    return size_bytes / 1e6 / seconds, len(latencies) / seconds, p50, p99
