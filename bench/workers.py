"""The work of one connection in a separate process: write its share, then read it back.

Separate processes avoid contention for the load's own interpreter lock. A connection owns the partitions congruent to
its index, so it knows the base offset of every produce response and every offset that it must read; it checks both, and
the checksum of the fetched bytes. The loops are optimised, because the broker needs the same cores.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection as Pipe
from typing import Any

from bench import wire
from bench.connection import BUFFER_BYTES, Connection
from bench.load import PHASE_TIMEOUT_SECONDS, Figures, Phase, measure
from bench.topics import Target, fresh_topic


@dataclass(frozen=True, slots=True)
class Load:
    """The work of one round. Every connection sends the same number of requests, spread evenly over its partitions."""

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


def run_round(target: Target, load: Load) -> Figures:
    with fresh_topic(target, load.partitions) as topic:
        return measure(target, partial(work, target.address, load, topic), load.connections, load.total_bytes)


def work(
    address: str,
    load: Load,
    topic: str,
    pipe: Pipe[Any, Any],
    index: int,
    connect: Callable[[str], Connection] = Connection,
) -> None:
    """Run a connection's process: send None when connected, then each phase's result on a trigger from the parent."""
    owned = range(index, load.partitions, load.connections)
    try:
        with connect(address) as connection:
            pipe.send(None)
            pipe.recv()
            pipe.send(produce(connection, load, topic, owned))
            pipe.recv()
            pipe.send(fetch(connection, load, topic, owned))
    except Exception as error:  # report any error to the parent process
        pipe.send(f"{type(error).__name__}: {error}")


def produce(connection: Connection, load: Load, topic: str, owned: Sequence[int], first_offset: int = 0) -> Phase:
    """Send all requests, at most a window ahead of the responses, and check each response.

    `first_offset` is the current end of each owned partition.
    """
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
            turn, owner = divmod(acknowledged, len(owned))
            partition, base_offset = owned[owner], first_offset + turn * load.batch.records
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
    """Fetch each owned partition from its first offset to the last one that was written."""
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
    """Return the offset after the last whole batch, after checking that batches are contiguous and unchanged."""
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
