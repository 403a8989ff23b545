"""Latency of a record: from sending to its acknowledgement, and to its arrival at waiting consumers.

Raw connections without a client library have no linger and no thread switches, so the broker and the kernel are
measured. Waits are bounded by the connection's timeouts.
"""

from __future__ import annotations

import select
import time
from contextlib import ExitStack

from bench import wire
from bench.connection import Connection
from bench.load import Figures, percentile_ms
from bench.topics import Target, fresh_topic
from bench.workers import check_batches

VALUE_BYTES = 100
PARK_MAX_WAIT_MS = 20_000
DELIVERY_TIMEOUT_SECONDS = 20
# Time for a broker to park the fetches just sent. A late one is delivered late and counts as such.
PARK_SECONDS = 0.002
PARK_SECONDS_PER_CONSUMER = 0.0001


def one_record() -> wire.Batch:
    return wire.record_batch(wire.BATCH_HEADER_BYTES + VALUE_BYTES + 20, VALUE_BYTES, int(time.time() * 1000))


class Appender:
    """A producer of the same one-record batch to partition 0 of a topic, which checks the offset of each."""

    def __init__(self, connection: Connection, topic: str, acks: int) -> None:
        self._connection = connection
        self._name = topic.encode()
        self._response = wire.produce_response(topic)
        self.batch = one_record()
        self._head = wire.produce_head(topic, 0, acks, len(self.batch.data))
        self.next_offset = 0

    def send(self) -> None:
        self._connection.send(self._head, self.batch.data)

    def receive(self) -> None:
        size = self._connection.receive_response()
        if size != self._response.size - 4:
            raise wire.UnexpectedResponse(f"a produce response of {size} bytes")
        got = self._response.unpack(size.to_bytes(4, "big") + self._connection.buffer[:size])
        if got[6:9] != (0, 0, self.next_offset):
            raise wire.UnexpectedResponse(f"Produce at {self.next_offset}: {got}")
        self.next_offset += 1


def run_synchronous_round(target: Target, acks: int, requests: int) -> Figures:
    """Send requests one at a time, each after the previous one is acknowledged."""
    latencies, clock = [], time.monotonic
    with fresh_topic(target, 1) as topic, Connection(target.address) as connection:
        appender = Appender(connection, topic, acks)
        for _ in range(requests):
            sent = clock()
            appender.send()
            appender.receive()
            latencies.append(clock() - sent)
    return {"p50_ms": percentile_ms(latencies, 0.50), "p99_ms": percentile_ms(latencies, 0.99)}


def run_delivery_round(target: Target, acks: int, consumers: int, appends: int) -> Figures:
    """Append records for consumers that each wait in a fetch; each append is delivered to all of them."""
    latencies, lasts = [], []
    with ExitStack() as stack:
        topic = stack.enter_context(fresh_topic(target, 1))
        appender = Appender(stack.enter_context(Connection(target.address)), topic, acks)
        waiting = Waiting([stack.enter_context(Connection(target.address)) for _ in range(consumers)], topic)
        stack.callback(waiting.close)
        for _ in range(appends):
            waiting.park(appender.next_offset)
            time.sleep(PARK_SECONDS + PARK_SECONDS_PER_CONSUMER * consumers)
            sent = time.monotonic()
            appender.send()
            arrived = waiting.receive(appender.batch, appender.next_offset)
            appender.receive()
            latencies += [at - sent for at in arrived]
            lasts.append(max(arrived) - sent)
    return {
        "p50_ms": percentile_ms(latencies, 0.50),
        "p99_ms": percentile_ms(latencies, 0.99),
        "last_consumer_p50_ms": percentile_ms(lasts, 0.50),
    }


class Waiting:
    """Consumers of partition 0, each with its own connection, polled together."""

    def __init__(self, connections: list[Connection], topic: str) -> None:
        self._topic = topic
        self._connections = {connection.fileno(): connection for connection in connections}
        self._poll = select.epoll()
        for descriptor in self._connections:
            self._poll.register(descriptor, select.EPOLLIN)

    def close(self) -> None:
        self._poll.close()

    def park(self, offset: int) -> None:
        request = wire.fetch_request(self._topic, [(0, offset)], offset, max_wait_ms=PARK_MAX_WAIT_MS)
        for connection in self._connections.values():
            connection.send(request)

    def receive(self, batch: wire.Batch, offset: int) -> list[float]:
        """Return when each consumer received the batch at `offset`. Raises an error if its response lacks it."""
        arrived: list[float] = []
        deadline = time.monotonic() + DELIVERY_TIMEOUT_SECONDS
        while len(arrived) < len(self._connections):
            ready = self._poll.poll(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"{len(arrived)} of {len(self._connections)} consumers had the record in time")
            for descriptor, _ in ready:
                connection = self._connections[descriptor]
                connection.receive_response()
                arrived.append(time.monotonic())
                ((_, begin, end),) = wire.fetch_response(connection.buffer)
                if check_batches(memoryview(connection.buffer)[begin:end], batch, offset) != offset + 1:
                    raise wire.UnexpectedResponse(f"a consumer was answered without the record at {offset}")
        return arrived
