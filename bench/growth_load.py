"""Logs of a given size, the broker's cost per request to them, and the time to open them after a kill.

Costs are CPU time of the broker per request, over requests to all partitions in rotation: throughput would also measure
the disk and the load program.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bench import startup, wire, workers
from bench.connection import Connection
from bench.load import Figures
from bench.servers import Flowstone
from bench.topics import RoundFailed, create
from bench.workers import Load

TOPIC = "grown"
VALUE_BYTES = 100
BATCH_BYTES = 16_000
RECOVERED_BATCH_BYTES = 1_000_000
PRODUCES = 1_000  # a round adds 16 MB: a small log stays small
FETCHES = 3_000
FETCH_SEED = 20_250_101


@dataclass(slots=True)
class Log:
    """A topic that is filled to a size and then measured. `size_bytes` 0: one batch per partition."""

    partitions: int
    size_bytes: int = 0
    produces: int = PRODUCES  # in a round
    _batch: wire.Batch = field(init=False)
    _end_offset: int = field(init=False, default=0)  # of each partition: they are always level
    _random: random.Random = field(init=False, default_factory=lambda: random.Random(FETCH_SEED))

    def fill(self, broker: Flowstone) -> None:
        self._batch = wire.record_batch(BATCH_BYTES, VALUE_BYTES, _now_ms())
        with Connection(broker.address) as connection:
            create(connection, TOPIC, self.partitions)
            self._produce(connection, max(self.size_bytes, self.partitions * len(self._batch.data)))

    def request_costs(self, broker: Flowstone) -> Figures:
        with Connection(broker.address) as connection:
            before = broker.cpu_seconds()
            self._produce(connection, self.produces * len(self._batch.data))
            between = broker.cpu_seconds()
            for number in range(FETCHES):
                self._fetch_one(connection, number % self.partitions, self._random.randrange(self._end_offset))
            after = broker.cpu_seconds()
        return {
            "produce_cpu_us": (between - before) * 1e6 / self.produces,
            "fetch_cpu_us": (after - between) * 1e6 / FETCHES,
        }

    def _produce(self, connection: Connection, size_bytes: int) -> None:
        load = Load(self._batch, size_bytes, acks=1, connections=1, partitions=self.partitions)
        workers.produce(connection, load, TOPIC, range(self.partitions), self._end_offset)
        self._end_offset += load.requests_per_connection // self.partitions * self._batch.records

    def _fetch_one(self, connection: Connection, partition: int, offset: int) -> None:
        """Fetch the one batch that contains an offset, so that all fetches have the same size."""
        request = wire.fetch_request(TOPIC, [(partition, offset)], 0, partition_max_bytes=BATCH_BYTES)
        connection.send(request)
        connection.receive_response()
        ((_, begin, end),) = wire.fetch_response(connection.buffer)
        if begin == end:
            raise RoundFailed(f"nothing at offset {offset} of {TOPIC}-{partition}")


def recovery(settings: Mapping[str, str], size_bytes: int) -> Figures:
    """Kill the broker as soon as the last record is acknowledged, restart it, and check that all records exist."""
    batch = wire.record_batch(RECOVERED_BATCH_BYTES, VALUE_BYTES, _now_ms())
    load = Load(batch, size_bytes, acks=-1, connections=1, partitions=1)
    with Flowstone(settings) as broker:
        with Connection(broker.address) as connection:
            create(connection, TOPIC, 1)
            workers.produce(connection, load, TOPIC, [0])
        broker.kill()
        started = time.monotonic()
        broker.launch()
        startup.wait_for_acknowledgement(broker, acks=-1)
        seconds = time.monotonic() - started
        with Connection(broker.address) as connection:
            once = replace(load, size_bytes=len(batch.data))
            workers.produce(connection, once, TOPIC, [0], load.requests_per_connection * batch.records)
        return {"first_acknowledged_s": seconds, "cpu_s": broker.cpu_seconds()}


def _now_ms() -> int:
    return int(time.time() * 1000)
