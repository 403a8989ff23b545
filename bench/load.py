"""The load: produce pre-encoded batches over several connections, fetch everything back, account for every offset.

`run_round` is one round against one broker on a topic of its own: create, produce, fetch, delete, `sync`. Each
connection is a process, so that the load's Python never waits for its own interpreter lock, and owns the partitions
congruent to its index, so that it knows the base offset every response must carry. A round either returns figures that
are complete (each response without error, each offset fetched back with the checksum it was sent with) or raises
`RoundFailed`: there is no partial figure.
"""

from __future__ import annotations

import multiprocessing
import os
import struct
import time
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection as Pipe
from typing import Any, Protocol

from bench import wire
from bench.connection import BUFFER_BYTES, Connection

PHASE_TIMEOUT_SECONDS = 120
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
class Load:
    """One round's work. Every connection sends the same number of requests, spread evenly over its partitions."""

    batch: wire.Batch
    size_bytes: int
    acks: int
    connections: int = 2
    partitions: int = 4
    window: int = 5

    @property
    def requests_per_connection(self) -> int:
        per_connection = self.size_bytes // len(self.batch.data) // self.connections
        owned = self.partitions // self.connections
        return max(1, per_connection // owned) * owned

    @property
    def total_bytes(self) -> int:
        return self.requests_per_connection * self.connections * len(self.batch.data)


@dataclass(frozen=True, slots=True)
class Phase:
    """One connection's share of producing or fetching. Times are of the monotonic clock all processes share."""

    started: float
    ended: float
    latencies: array[float]


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


def run_round(target: Target, load: Load) -> Figures:
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


def _measure(target: Target, load: Load, topic: str) -> Figures:
    context = multiprocessing.get_context("fork")
    pipes, workers = [], []
    try:
        for index in range(load.connections):
            ours, theirs = context.Pipe()
            worker = context.Process(target=_work, args=(theirs, target.address, load, topic, index), daemon=True)
            worker.start()
            theirs.close()  # a worker that dies then reads as the end of its pipe
            pipes.append(ours)
            workers.append(worker)
        _collect(pipes)  # connected
        cpu_before = target.cpu_seconds()
        produced = _collect(_go(pipes))
        cpu_between = target.cpu_seconds()
        fetched = _collect(_go(pipes))
        cpu_after = target.cpu_seconds()
    finally:
        for pipe in pipes:
            pipe.close()
        for worker in workers:
            worker.join(WORKER_EXIT_TIMEOUT_SECONDS)
            if worker.exitcode is None:
                worker.kill()
                worker.join()
    return _figures(load, produced, cpu_between - cpu_before, fetched, cpu_after - cpu_between)


def _go(pipes: Sequence[Pipe[Any, Any]]) -> Sequence[Pipe[Any, Any]]:
    for pipe in pipes:
        pipe.send(None)
    return pipes


def _collect(pipes: Sequence[Pipe[Any, Any]]) -> list[Phase]:
    """One answer from every worker; the first that failed or is late fails the round."""
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


def _figures(load: Load, produced: list[Phase], produce_cpu: float, fetched: list[Phase], fetch_cpu: float) -> Figures:
    size_bytes = load.total_bytes
    produce, fetch = _rates(produced, size_bytes), _rates(fetched, size_bytes)
    return Figures(*produce, produce_cpu * 1e9 / size_bytes, *fetch, fetch_cpu * 1e9 / size_bytes)


def _rates(phases: list[Phase], size_bytes: int) -> tuple[float, float, float, float]:
    """MB/s, requests/s, and the median and 99th percentile of a request's latency in ms."""
    seconds = max(phase.ended for phase in phases) - min(phase.started for phase in phases)
    latencies = sorted(latency for phase in phases for latency in phase.latencies)
    p50, p99 = (latencies[int(len(latencies) * share)] * 1e3 for share in (0.50, 0.99))
    return size_bytes / 1e6 / seconds, len(latencies) / seconds, p50, p99


def _work(pipe: Pipe[Any, Any], address: str, load: Load, topic: str, index: int) -> None:
    """A connection's process: answers None when connected, then each phase on a word from the parent."""
    owned = range(index, load.partitions, load.connections)
    try:
        with Connection(address) as connection:
            pipe.send(None)
            pipe.recv()
            pipe.send(produce(connection, load, topic, owned))
            pipe.recv()
            pipe.send(fetch(connection, load, topic, owned))
    except EOFError:
        pass  # the parent has given the round up
    except Exception as error:  # whatever it is, the parent must hear of it
        pipe.send(f"{type(error).__name__}: {error}")


def produce(connection: Connection, load: Load, topic: str, owned: Sequence[int]) -> Phase:
    """Sends every request, never more than the window ahead of the responses, each of which is checked."""
    batch, requests, clock = load.batch.data, load.requests_per_connection, time.monotonic
    heads = [wire.produce_head(topic, partition, load.acks, len(batch)) for partition in owned]
    response, name = wire.produce_response(topic), topic.encode()
    buffer = bytearray(BUFFER_BYTES)
    view = memoryview(buffer)
    sent_at, latencies = array("d"), array("d")
    filled = sent = acknowledged = 0
    started = clock()
    while acknowledged < requests:
        while sent < requests and sent - acknowledged < load.window:
            head = heads[sent % len(heads)]
            wire.CORRELATION.pack_into(head, wire.CORRELATION_AT, sent)
            sent_at.append(clock())
            connection.send(head, batch)
            sent += 1
        filled += connection.receive_some(view[filled:])
        now, at = clock(), 0
        while filled - at >= response.size:
            partition, base_offset = owned[acknowledged % len(owned)], acknowledged // len(owned) * load.batch.records
            got = response.unpack_from(buffer, at)
            if got[:9] != (response.size - 4, acknowledged, 1, len(name), name, 1, partition, 0, base_offset):
                raise wire.UnexpectedResponse(f"Produce to {topic}-{partition} at {base_offset}: {got}")
            latencies.append(now - sent_at[acknowledged])
            acknowledged += 1
            at += response.size
        buffer[: filled - at] = buffer[at:filled]
        filled -= at
    return Phase(started, clock(), latencies)


def fetch(connection: Connection, load: Load, topic: str, owned: Sequence[int]) -> Phase:
    """Fetches each owned partition from its first offset to the last one that was produced."""
    end_offset = load.requests_per_connection // len(owned) * load.batch.records
    offsets = dict.fromkeys(owned, 0)
    latencies, clock = array("d"), time.monotonic
    started = clock()
    deadline = started + PHASE_TIMEOUT_SECONDS
    while offsets:
        asked = clock()
        if asked > deadline:
            raise TimeoutError(f"not fetched after {PHASE_TIMEOUT_SECONDS} s: {topic} from {offsets} to {end_offset}")
        connection.send(wire.fetch_request(topic, offsets.items(), len(latencies)))
        connection.receive_response()
        latencies.append(clock() - asked)
        for partition, begin, end in wire.fetch_response(connection.buffer):
            offset = check_batches(memoryview(connection.buffer)[begin:end], load.batch, offsets[partition])
            offsets[partition] = offset
            if offset >= end_offset:
                del offsets[partition]
    return Phase(started, clock(), latencies)


def check_batches(records: memoryview, batch: wire.Batch, offset: int) -> int:
    """The offset after the last whole batch; each must follow the one before and hold the bytes that were sent."""
    size, crc = len(batch.data), batch.crc
    length = size - wire.BATCH_LENGTH_FROM
    for begin in range(0, len(records) - size + 1, size):
        base_offset, its_length, _epoch, magic, its_crc = wire.BATCH_HEAD.unpack_from(records, begin)
        if (base_offset, its_length, magic, its_crc) != (offset, length, wire.MAGIC, crc):
            raise wire.UnexpectedResponse(f"expected offset {offset}, fetched {base_offset} ({its_length} bytes)")
        if wire.crc32c(records[begin + wire.BATCH_CRC_FROM : begin + size]) != crc:
            raise wire.UnexpectedResponse(f"the batch at offset {offset} came back with other bytes")
        offset += batch.records
    return offset
