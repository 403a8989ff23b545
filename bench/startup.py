"""Time from the start of a broker's process to its first acknowledged record, and its memory then.

Each round uses a new broker with formatted storage; the brokers under load stay up, idle.
"""

from __future__ import annotations

import time

from bench import wire
from bench.connection import Connection
from bench.latency import Appender
from bench.load import Figures
from bench.servers import START_TIMEOUT_SECONDS, Server, ServerError
from bench.topics import BROKER_TROUBLE, RoundFailed

RETRY_SECONDS = 0.002
TOPIC = "first"


def run_round(server: Server, acks: int) -> Figures:
    fresh = server.twin()
    fresh.prepare()
    try:
        started = time.monotonic()
        fresh.launch()
        wait_for_acknowledgement(fresh, acks)
        return {"first_acknowledged_s": time.monotonic() - started, "idle_rss_mb": fresh.rss_mb()}
    except ServerError as error:
        raise RoundFailed(str(error)) from error
    finally:
        fresh.stop()


def wait_for_acknowledgement(server: Server, acks: int) -> None:
    """Repeat a produce request until it is acknowledged: a broker that is not ready refuses it."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    created = False
    while True:
        try:
            with Connection(server.address) as connection:
                if not created:
                    wire.topic_response("CreateTopics", connection.ask(wire.create_topic(TOPIC, 1)))
                    created = True
                appender = Appender(connection, TOPIC, acks)
                appender.send()
                appender.receive()
            return
        except BROKER_TROUBLE as trouble:
            server.check_running()
            if time.monotonic() > deadline:
                raise RoundFailed(f"no acknowledgement within {START_TIMEOUT_SECONDS} s: {trouble}") from trouble
            time.sleep(RETRY_SECONDS)
