"""Costs of large numbers: partitions of one consumer, idle connections, topics with a low descriptor limit."""

from __future__ import annotations

import time
from contextlib import ExitStack

from bench import startup, wire, workers
from bench.connection import Connection
from bench.latency import Appender
from bench.load import Figures, percentile_ms
from bench.modes import FLOWSTONE, NOT_FLUSHED
from bench.servers import Flowstone
from bench.topics import create

PARTITIONS = 1_000
APPENDS = 300
PARK_SECONDS = 0.01
CONNECTIONS = 2_000
TOPICS = 10_000
TOPICS_MEASURED = 2_500
DESCRIPTORS_MAX = 1_024


class CrampedFlowstone(Flowstone):
    """A broker with a descriptor limit that it cannot raise."""

    def _prepare(self) -> list[str]:
        return ["sh", "-c", f'ulimit -n {DESCRIPTORS_MAX} && exec "$@"', "sh", *super()._prepare()]


def one_active_of_many() -> dict[str, Figures]:
    """Measure fetches with a session, as the Java client does, and without, as librdkafka does."""
    rows = {}
    for title, partitions, in_session in (
        ("1 partition, in a session", 1, True),
        ("1,000 partitions, in a session", PARTITIONS, True),
        ("1,000 partitions, all named", PARTITIONS, False),
    ):
        with (
            Flowstone(NOT_FLUSHED.settings[FLOWSTONE]) as broker,
            Connection(broker.address) as producer,
            Connection(broker.address) as consumer,
        ):
            rows[title] = _deliveries(broker, producer, consumer, partitions, in_session)
    return rows


def _deliveries(
    broker: Flowstone, producer: Connection, consumer: Connection, partitions: int, in_session: bool
) -> Figures:
    create(producer, "many", partitions)
    appender = Appender(producer, "many", acks=1)
    offsets = dict.fromkeys(range(partitions), 0)
    session = wire.NO_SESSION
    if in_session:
        session = _open_session(consumer, offsets)
    latencies, before = [], broker.cpu_seconds()
    for number in range(APPENDS):
        named = {0: offsets[0]} if in_session else offsets
        consumer.send(wire.fetch_request("many", named.items(), number, session=session))
        time.sleep(PARK_SECONDS)
        sent = time.monotonic()
        appender.send()
        consumer.receive_response()
        latencies.append(time.monotonic() - sent)
        appender.receive()
        found = {partition: (begin, end) for partition, begin, end in wire.fetch_response(consumer.buffer)}
        begin, end = found[0]
        offsets[0] = workers.check_batches(memoryview(consumer.buffer)[begin:end], appender.batch, offsets[0])
        session = (session[0], session[1] + 1) if in_session else session
    cpu = broker.cpu_seconds() - before
    return {"append_and_fetch_cpu_us": cpu * 1e6 / APPENDS, "delivery_p50_ms": percentile_ms(latencies, 0.5),
            "delivery_p99_ms": percentile_ms(latencies, 0.99)}  # fmt: skip


def _open_session(consumer: Connection, offsets: dict[int, int]) -> tuple[int, int]:
    consumer.send(wire.fetch_request("many", offsets.items(), 0, max_wait_ms=0, session=wire.NEW_SESSION))
    consumer.receive_response()
    session_id = wire.fetch_session_id(consumer.buffer)
    if not session_id:
        raise wire.UnexpectedResponse("the broker opened no fetch session")
    return session_id, 1


def idle_connections() -> dict[str, Figures]:
    rows = {}
    with Flowstone() as broker, ExitStack() as stack:
        rows["none"] = {"rss_mb": broker.rss_mb()}
        for _ in range(CONNECTIONS):
            connection = stack.enter_context(Connection(broker.address))
            wire.brokers_alive(connection.ask(wire.metadata()))
        rows[f"{CONNECTIONS:,}, each after one request"] = {"rss_mb": broker.rss_mb()}
    return rows


def many_topics() -> dict[str, Figures]:
    """Create each topic with a separate request and write a flushed record to it, which creates its files."""
    rows = {}
    with CrampedFlowstone() as broker:
        with Connection(broker.address) as connection:
            for first in range(0, TOPICS, TOPICS_MEASURED):
                names = [f"topic-{number}" for number in range(first, first + TOPICS_MEASURED)]
                rows[f"topics {first:,} to {first + TOPICS_MEASURED:,}"] = _new_topics(broker, connection, names)
        broker.kill()
        killed = time.monotonic()
        broker.launch()
        startup.wait_for_acknowledgement(broker, acks=-1)
        rows[f"start after kill -9 with {TOPICS:,}"] = {"seconds": time.monotonic() - killed, "rss_mb": broker.rss_mb()}
    return rows


def _new_topics(broker: Flowstone, connection: Connection, names: list[str]) -> Figures:
    started, cpu_started = time.monotonic(), broker.cpu_seconds()
    for name in names:
        wire.topic_response("CreateTopics", connection.ask(wire.create_topic(name, 1)))
    created, cpu_created = time.monotonic(), broker.cpu_seconds()
    for name in names:
        appender = Appender(connection, name, acks=-1)
        appender.send()
        appender.receive()
    filled, cpu_filled = time.monotonic(), broker.cpu_seconds()
    return {
        "create_ms": (created - started) * 1e3 / len(names),
        "create_cpu_ms": (cpu_created - cpu_started) * 1e3 / len(names),
        "first_record_ms": (filled - created) * 1e3 / len(names),
        "first_record_cpu_ms": (cpu_filled - cpu_created) * 1e3 / len(names),
        "rss_mb": broker.rss_mb(),
    }
