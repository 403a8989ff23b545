"""The list of workloads for both brokers: names, variants, and one round of each.

A workload's headline is the figure by which warm-up is judged and which the plot shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from bench import client_workers, latency, startup, wire, workers
from bench.client_workers import ClientLoad
from bench.load import Figures
from bench.modes import FLUSHED, NOT_FLUSHED, Mode
from bench.servers import Server
from bench.workers import Load

PIPELINED, CLIENT, SYNCHRONOUS, DELIVERY, START = "pipelined", "client", "synchronous", "delivery", "start"
NAMES = (PIPELINED, CLIENT, SYNCHRONOUS, DELIVERY, START)

BATCH_BYTES = (16_000, 64_000, 1_000_000)
VALUE_BYTES = 100
GATED_CONNECTIONS = 2
OTHER_CONNECTIONS = (1, 8)
OTHER_CONNECTIONS_SHARE = 3  # a third of the usual rounds, because they have no gates
PARTITIONS = 4  # more for more connections: each needs at least one

CLIENT_RECORDS = {100: 100_000, 1_000: 40_000}
COMPRESSIONS = ("none", "lz4")

SYNCHRONOUS_REQUESTS = {NOT_FLUSHED.name: 4_000, FLUSHED.name: 1_000}
DELIVERY_APPENDS = {1: 200, 1_000: 5}


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload; `run` is one round on a running broker, and `gated` ones are also part of a quick run."""

    name: str
    variant: str
    mode: Mode
    headline: str
    run: Callable[[Server], Figures]
    gated: bool = True


def pipelined_variant(batch_bytes: int, connections: int = GATED_CONNECTIONS) -> str:
    return f"{batch_bytes:,} B batches, {connections} connection{'s' if connections > 1 else ''}"


def catalogue(mode: Mode, share: int) -> Iterator[Workload]:
    """Yield everything that is measured in a mode, each round at 1/`share` of its full size."""
    for connections in (GATED_CONNECTIONS, *OTHER_CONNECTIONS):
        gated = connections == GATED_CONNECTIONS
        round_bytes = mode.round_bytes // share // (1 if gated else OTHER_CONNECTIONS_SHARE)
        for batch_bytes in BATCH_BYTES:
            batch = wire.record_batch(batch_bytes, VALUE_BYTES, int(time.time() * 1000))
            load = Load(batch, round_bytes, mode.acks, connections, max(PARTITIONS, connections))
            variant = pipelined_variant(batch_bytes, connections)
            run = partial(workers.run_round, load=load)
            yield Workload(PIPELINED, variant, mode, "produce_mb_per_s", run, gated)
    requests = SYNCHRONOUS_REQUESTS[mode.name] // share
    run = partial(latency.run_synchronous_round, acks=mode.acks, requests=requests)
    yield Workload(SYNCHRONOUS, "one record of 100 B in flight", mode, "p50_ms", run)
    for consumers, appends in DELIVERY_APPENDS.items():
        run = partial(latency.run_delivery_round, acks=mode.acks, consumers=consumers, appends=appends)
        yield Workload(DELIVERY, f"{consumers:,} parked", mode, "p50_ms", run, gated=False)
    if mode is NOT_FLUSHED:
        yield from _client_catalogue(mode, share)
        run = partial(startup.run_round, acks=mode.acks)
        yield Workload(START, "empty data directory", mode, "first_acknowledged_s", run)


def _client_catalogue(mode: Mode, share: int) -> Iterator[Workload]:
    for value_bytes, records in CLIENT_RECORDS.items():
        for compression in COMPRESSIONS:
            load = ClientLoad(value_bytes, compression, mode.acks, records // share)
            run = partial(client_workers.run_round, load=load)
            variant = f"{value_bytes:,} B values, {compression}"
            yield Workload(CLIENT, variant, mode, "produce_mb_per_s", run, gated=False)
