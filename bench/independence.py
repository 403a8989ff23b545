"""`python -m bench.independence`: the effect of other clients on a group's latency.

A producer sends a record every few milliseconds with acks=all, and a group reads and commits them. The result is the
time from sending to receiving. Every round measures it alone and then with each kind of other client (one that stalls,
one that reads cold data, a hundred new producers), so that a change of the machine's speed affects both. The other
clients run at nice 19 in a session that is nice as a whole: their load on the broker counts, not the processor time of
their own Python. A thread that wakes up still waits for their time slice; with `--giving-way` they request long slices
and are preempted.

On a shared disk, a client that keeps the disk busy also delays every flush. `--page-cache` leaves flushing to the
system (flush.messages), which leaves only the broker's own part.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import selectors
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path

from bench import group_wire, topics, wire
from bench.commits import await_coordinator
from bench.connection import Connection
from bench.load import percentile_ms
from bench.servers import Flowstone
from bench.shared_reads import forget_cached
from bench.topics import RoundFailed
from bench.workers import Load, produce
from flowstone.ports.background import lower_priority, set_background_priority

ROUNDS = 5
SECONDS = 4.0
WARM_UP_SECONDS = 0.5
SEND_INTERVAL_SECONDS = 0.005
COMMIT_INTERVAL_SECONDS = 1.0
VALUE_BYTES = 100
RATIO_MAX = 1.5

HOT, COLD, FRESH, GROUP = "hot", "cold", "fresh", "watched"
COLD_BYTES = 400_000_000
COLD_BATCH_BYTES = 1_000_000
COLD_VALUE_BYTES = 1000
STALLED_FETCHES = 50
PRODUCERS, PRODUCER_INTERVAL_SECONDS, FRESH_PARTITIONS = 100, 0.1, 10
ACKS_ALL = -1
NICE = 19
NO_COMPANY = "alone"


class Watched:
    """The measured group and its producer, in one loop."""

    def __init__(self, address: str, stack: ExitStack) -> None:
        self._producing, self._consuming = (stack.enter_context(Connection(address)) for _ in range(2))
        self._batch = _one_record().data
        self._head = bytes(wire.produce_head(HOT, 0, ACKS_ALL, len(self._batch)))
        self._offset = 0

    def latencies(self, seconds: float) -> list[float]:
        """Return the time from sending to receiving of every record."""
        sent_at: deque[float] = deque()
        latencies: list[float] = []
        unanswered = 0
        now = started = time.monotonic()
        next_send, next_commit, ends = started, started + COMMIT_INTERVAL_SECONDS, started + seconds
        with selectors.DefaultSelector() as selector:
            for connection in (self._producing, self._consuming):
                selector.register(connection, selectors.EVENT_READ, connection)
            self._fetch()
            while now < ends or sent_at or unanswered:
                if now > ends + topics.TOPIC_READY_TIMEOUT_SECONDS:
                    raise RoundFailed(f"{len(sent_at)} records never reached the group")
                if next_send <= now < ends:
                    sent_at.append(time.monotonic())
                    self._producing.send(self._head, self._batch)
                    unanswered += 1
                    next_send += SEND_INTERVAL_SECONDS
                for key, _events in selector.select(max(0.0, next_send - time.monotonic())):
                    key.data.receive_response()
                    if key.data is self._producing:
                        unanswered -= 1
                        continue
                    latencies += self._received(sent_at)
                    if now > next_commit:
                        self._commit()
                        next_commit = now + COMMIT_INTERVAL_SECONDS
                    self._fetch()
                now = time.monotonic()
            self._consuming.receive_response()  # of the fetch that waits
        return latencies

    def _fetch(self) -> None:
        self._consuming.send(wire.fetch_request(HOT, [(0, self._offset)], 0))

    def _received(self, sent_at: deque[float]) -> Iterator[float]:
        now = time.monotonic()
        for _partition, begin, end in wire.fetch_response(self._consuming.buffer):
            for _ in range((end - begin) // len(self._batch)):
                self._offset += 1
                yield now - sent_at.popleft()

    def _commit(self) -> None:
        answer = self._consuming.ask(group_wire.offset_commit(GROUP, HOT, [self._offset]))
        if group_wire.offset_commit_errors(answer, HOT) != {0}:
            raise RoundFailed("the watched group's commit was refused")


# The other clients: each runs in a separate process until it is ended.


def stall(address: str) -> None:
    """Request much more data than any buffer holds and never read it."""
    with Connection(address) as connection:
        for number in range(STALLED_FETCHES):
            connection.send(wire.fetch_request(COLD, [(0, number)], number))
        time.sleep(SECONDS * 10)


def read_cold(address: str, data: Path, batch: wire.Batch) -> None:
    """Read a topic from its start, from the disk, repeatedly."""
    with Connection(address) as connection:
        while True:
            forget_cached(data, COLD)
            offset = 0
            while True:
                connection.send(wire.fetch_request(COLD, [(0, offset)], 0))
                connection.receive_response()
                ((_partition, begin, end),) = wire.fetch_response(connection.buffer)
                if begin == end:
                    break
                offset += (end - begin) // len(batch.data) * batch.records


def produce_by_the_hundred(address: str) -> None:
    """Open new connections and send one record at a time on each."""
    batch = _one_record().data
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        connections = [stack.enter_context(Connection(address)) for _ in range(PRODUCERS)]
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ, connection)
        started = time.monotonic()
        for number in count():
            due_at = started + number * PRODUCER_INTERVAL_SECONDS / PRODUCERS
            while (wait := due_at - time.monotonic()) > 0:
                for key, _events in selector.select(wait):
                    key.data.receive_response()
            head = bytes(wire.produce_head(FRESH, number % FRESH_PARTITIONS, ACKS_ALL, len(batch)))
            connections[number % PRODUCERS].send(head, batch)


@contextmanager
def company(work: Callable[[], None] | None, step_back: Callable[[int], None]) -> Iterator[None]:
    if work is None:
        yield
        return

    def run() -> None:
        os.setsid()  # niceness counts within a session
        step_back(NICE)
        work()

    process = multiprocessing.get_context("fork").Process(target=run, daemon=True)
    process.start()
    try:
        time.sleep(WARM_UP_SECONDS)
        yield
        if not process.is_alive():
            raise RoundFailed(f"the company left early, with exit {process.exitcode}")
    finally:
        process.kill()
        process.join()


def _one_record() -> wire.Batch:
    batch = wire.record_batch(wire.BATCH_HEADER_BYTES + 2 * VALUE_BYTES, VALUE_BYTES, int(time.time() * 1000))
    assert batch.records == 1, "two do not fit"
    return batch


def prepare(address: str, batch: wire.Batch) -> None:
    with Connection(address) as connection:
        for topic, partitions in ((HOT, 1), (COLD, 1), (FRESH, FRESH_PARTITIONS)):
            topics.create(connection, topic, partitions)
        produce(connection, Load(batch, COLD_BYTES, ACKS_ALL, connections=1, partitions=1), COLD, [0])
        await_coordinator(connection, GROUP)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.independence", description="One group beside others.")
    parser.add_argument("--page-cache", action="store_true", help="acknowledge before records are on disk")
    parser.add_argument(
        "--giving-way", action="store_true", help="the other clients request long time slices and are preempted"
    )
    options = parser.parse_args(words)
    settings = {"flush.messages": str(2**63 - 1)} if options.page_cache else {}
    with Flowstone(settings) as server, ExitStack() as stack:
        cold_batch = wire.record_batch(COLD_BATCH_BYTES, COLD_VALUE_BYTES, int(time.time() * 1000))
        prepare(server.address, cold_batch)
        kinds: dict[str, Callable[[], None] | None] = {
            NO_COMPANY: None,
            "a stalled consumer": partial(stall, server.address),
            "a reader of cold data": partial(read_cold, server.address, server.data, cold_batch),
            f"{PRODUCERS} new producers": partial(produce_by_the_hundred, server.address),
        }
        watched = Watched(server.address, stack)
        watched.latencies(SECONDS)  # warm
        p99s: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(ROUNDS):
            for kind, work in kinds.items():
                with company(work, set_background_priority if options.giving_way else lower_priority):
                    p99s[kind].append(percentile_ms(watched.latencies(SECONDS), 0.99))
    baseline = statistics.median(p99s[NO_COMPANY])
    print(f"{'beside':24}{'p99, ms':>10}{'ratio':>8}   of {ROUNDS} rounds, ms")
    ratios = {kind: statistics.median(each) / baseline for kind, each in p99s.items()}
    for kind, each in p99s.items():
        rounds = " ".join(f"{p99:.2f}" for p99 in each)
        print(f"{kind:24}{statistics.median(each):10.2f}{ratios[kind]:7.2f}x   {rounds}")
    missed = [kind for kind, ratio in ratios.items() if ratio > RATIO_MAX]
    print(f"MISSED ({RATIO_MAX}x): {', '.join(missed)}" if missed else f"passed: all within {RATIO_MAX}x")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
