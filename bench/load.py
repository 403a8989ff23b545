"""One round of load on one broker: a process per connection writes its share and then reads everything back.

`measure` starts the processes, triggers each phase and measures the broker's CPU time. The caller provides the work:
prepared batches (`workers`) or a client library (`client_workers`).
"""

from __future__ import annotations

import multiprocessing
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from typing import Any

from bench.topics import RoundFailed, Target

WORKER_EXIT_TIMEOUT_SECONDS = 10
PHASE_TIMEOUT_SECONDS = 120

Figures = dict[str, float]
Worker = Callable[["Pipe[Any, Any]", int], None]


@dataclass(frozen=True, slots=True)
class Phase:
    """One connection's share of producing or fetching. Times are of the monotonic clock that all processes share."""

    started: float
    ended: float
    latencies: array[float] = field(default_factory=lambda: array("d"))


def measure(target: Target, worker: Worker, connections: int, size_bytes: int) -> Figures:
    """Run a round and return its figures.

    A worker sends None when connected, then a `Phase` for each of two triggers.
    """
    with started(worker, connections) as pipes:
        collect(pipes)  # connected
        cpu_before = target.cpu_seconds()
        produced = collect(trigger(pipes))
        cpu_between = target.cpu_seconds()
        fetched = collect(trigger(pipes))
        cpu_after = target.cpu_seconds()
    return {
        **_rates("produce", produced, size_bytes),
        "produce_cpu_s_per_gb": (cpu_between - cpu_before) * 1e9 / size_bytes,
        **_rates("fetch", fetched, size_bytes),
        "fetch_cpu_s_per_gb": (cpu_after - cpu_between) * 1e9 / size_bytes,
    }


@contextmanager
def started(worker: Worker, count: int) -> Iterator[Sequence[Pipe[Any, Any]]]:
    """Yield the pipes of worker processes; afterwards all of them have ended, killed if they wait for a trigger."""
    context = multiprocessing.get_context("fork")
    pipes, processes = [], []
    try:
        for index in range(count):
            ours, theirs = context.Pipe()
            processes.append(context.Process(target=worker, args=(theirs, index), daemon=True))
            processes[-1].start()
            theirs.close()  # so that the end of a process is the end of its pipe
            pipes.append(ours)
        yield pipes
        for process in processes:
            process.join(WORKER_EXIT_TIMEOUT_SECONDS)
    finally:
        for process in processes:
            process.kill()  # workers of a failed round wait for a trigger that is never sent
            process.join()
        for pipe in pipes:
            pipe.close()


def percentile_ms(seconds: Sequence[float], share: float) -> float:
    ordered = sorted(seconds)
    return ordered[int(len(ordered) * share)] * 1e3


def trigger(pipes: Sequence[Pipe[Any, Any]]) -> Sequence[Pipe[Any, Any]]:
    """Have every worker begin its next phase; return the pipes, on which the results come."""
    for pipe in pipes:
        pipe.send(None)
    return pipes


def collect(pipes: Sequence[Pipe[Any, Any]]) -> list[Any]:
    """Return one result per worker; the first one that failed or is late fails the round."""
    deadline = time.monotonic() + PHASE_TIMEOUT_SECONDS
    phases = []
    for pipe in pipes:
        if not pipe.poll(max(0.0, deadline - time.monotonic())):
            raise RoundFailed(f"a connection was not done after {PHASE_TIMEOUT_SECONDS} s")
        try:
            answer = pipe.recv()
        except EOFError:
            raise RoundFailed("a connection's process died") from None
        if isinstance(answer, str):
            raise RoundFailed(answer)
        phases.append(answer)
    return phases


def _rates(phase: str, shares: list[Phase], size_bytes: int) -> Figures:
    seconds = max(share.ended for share in shares) - min(share.started for share in shares)
    figures = {f"{phase}_mb_per_s": size_bytes / 1e6 / seconds}
    if latencies := [latency for share in shares for latency in share.latencies]:
        figures[f"{phase}_requests_per_s"] = len(latencies) / seconds
        figures[f"{phase}_p50_ms"] = percentile_ms(latencies, 0.50)
        figures[f"{phase}_p99_ms"] = percentile_ms(latencies, 0.99)
    return figures
