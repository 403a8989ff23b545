"""Many of something: partitions behind one consumer, idle connections, topics under a tight descriptor limit."""

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
DESCRIPTORS_MAX = 1_024


class CrampedFlowstone(Flowstone):
    """May hold so many descriptors and cannot raise the limit."""

    def _prepare(self) -> list[str]:
        return ["sh", "-c", f'ulimit -n {DESCRIPTORS_MAX} && exec "$@"', "sh", *super()._prepare()]


def one_active_of_many() -> dict[str, Figures]:
    """As the Java client fetches, in a session that names what changed, and as librdkafka does, naming all of them."""
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
    """Each is created by a request of its own and takes a record, flushed: that is what makes its files."""
    with CrampedFlowstone() as broker:
        with Connection(broker.address) as connection:
            started, cpu = time.monotonic(), broker.cpu_seconds()
            for number in range(TOPICS):
                wire.topic_response("CreateTopics", connection.ask(wire.create_topic(f"topic-{number}", 1)))
            created, created_cpu = time.monotonic(), broker.cpu_seconds()
            for number in range(TOPICS):
                appender = Appender(connection, f"topic-{number}", acks=-1)
                appender.send()
                appender.receive()
            filled = time.monotonic()
        rss_mb = broker.rss_mb()
        broker.kill()
        killed = time.monotonic()
        broker.launch()
        startup.wait_for_acknowledgement(broker, acks=-1)
        restarted = time.monotonic()
    return {
        "one partition each": {
            "create_ms": (created - started) * 1e3 / TOPICS,
            "create_cpu_ms": (created_cpu - cpu) * 1e3 / TOPICS,
            "first_record_ms": (filled - created) * 1e3 / TOPICS,
            "rss_mb": rss_mb,
            "restart_after_kill_s": restarted - killed,
        }
    }
