"""`python -m bench.cold_reads`: measures whether a consumer of old data, not in the page cache, delays a producer.

A producer sends one small batch at a time, alone and together with a consumer that repeatedly reads data evicted from
the page cache. Rounds alternate; the gate is on the median of the rounds' ratios of p99. The consumer runs at nice 19,
so that the broker is measured and not the competition of the two programs for two cores.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
from multiprocessing.synchronize import Event
from pathlib import Path

from bench import wire
from bench.connection import Connection
from bench.servers import Flowstone

ROUNDS = 5
PRODUCES = 1500
PAUSE_SECONDS = 0.0005
OLD_BATCHES = 300
OLD_BATCH_BYTES = 900_000
EVICT_SECONDS = 0.1
READ_SECONDS_MAX = 60.0
RATIO_MAX = 2.0
NEVER = "9223372036854775807"


def main() -> int:
    with Flowstone({"flush.messages": NEVER}) as broker, Connection(broker.address) as connection:
        now_ms = int(time.time() * 1000)
        for topic in ("old", "new"):
            connection.ask(wire.create_topic(topic, 1))
        old = wire.record_batch(OLD_BATCH_BYTES, 10_000, now_ms)
        for _ in range(OLD_BATCHES):
            _produce(connection, "old", old)
        small = wire.record_batch(250, 100, now_ms)
        folder = broker.data / "old-0"
        ratios = []
        for number in range(1, ROUNDS + 1):
            alone = _p99_seconds(connection, small)
            stop, reader = _start_reader(broker.address, folder)
            beside = _p99_seconds(connection, small)
            stop.set()
            reader.join(READ_SECONDS_MAX)
            ratios.append(beside / alone)
            print(
                f"round {number}: produce p99 {alone * 1000:.2f} ms alone, {beside * 1000:.2f} ms beside a cold reader"
            )
    ratio = statistics.median(ratios)
    print(f"median ratio {ratio:.2f}, at most {RATIO_MAX} {'passed' if ratio <= RATIO_MAX else 'MISSED'}")
    return 0 if ratio <= RATIO_MAX else 1


def _produce(connection: Connection, topic: str, batch: wire.Batch) -> None:
    connection.send(wire.produce_head(topic, 0, 1, len(batch.data)), batch.data)
    size = connection.receive_response()
    # The response's own size is not in the buffer.
    error = wire.produce_response(topic).unpack(bytes(4) + connection.buffer[:size])[6]
    if error:
        raise wire.UnexpectedResponse(f"produce failed with error {error}")


def _p99_seconds(connection: Connection, batch: wire.Batch) -> float:
    durations = []
    for _ in range(PRODUCES):
        started = time.perf_counter()
        _produce(connection, "new", batch)
        durations.append(time.perf_counter() - started)
        time.sleep(PAUSE_SECONDS)
    return statistics.quantiles(durations, n=100)[98]


def _start_reader(address: str, folder: Path) -> tuple[Event, multiprocessing.Process]:
    started, stop = multiprocessing.Event(), multiprocessing.Event()
    reader = multiprocessing.Process(target=_read_cold, args=(address, folder, started, stop), daemon=True)
    reader.start()
    started.wait(READ_SECONDS_MAX)
    return stop, reader


def _read_cold(address: str, folder: Path, started: Event, stop: Event) -> None:
    """Read the old topic repeatedly, evicting its pages from the page cache every few reads."""
    os.nice(19)
    ends, evicted_at, offset = time.monotonic() + READ_SECONDS_MAX, 0.0, 0
    with Connection(address) as connection:
        while not stop.is_set() and time.monotonic() < ends:
            if time.monotonic() - evicted_at > EVICT_SECONDS:
                _evict(folder)
                evicted_at = time.monotonic()
            connection.ask(wire.fetch_request("old", [(0, offset)], 0))
            started.set()
            offset = (offset + 89) % (OLD_BATCHES * 80)


def _evict(folder: Path) -> None:
    for path in folder.glob("*.log"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
