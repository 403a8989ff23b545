"""The broker's processor time for read_committed fetches, compared with read_uncommitted fetches of the same log.

One in ten transactions of the log is aborted, and transactions of several producers overlap. Every fetch goes to the
same offsets in both cases, so the difference is what the isolation level costs the broker.
"""

from __future__ import annotations

import time
from functools import partial
from multiprocessing.connection import Connection as Pipe
from struct import unpack_from
from typing import Any

from bench import wire
from bench.connection import Connection
from bench.load import PHASE_TIMEOUT_SECONDS, Figures, collect, started
from bench.topics import RoundFailed, Target, fresh_topic
from bench.transactions.load import CALL_TIMEOUT_SECONDS, VALUE_BYTES, new_producer

PRODUCERS = 4
RECORDS_PER_TRANSACTION = 100
ABORTED_ONE_IN = 10
# Both are read in turn, so that what changes with time changes both.
PASSES = 6
LEVELS = {"uncommitted": wire.READ_UNCOMMITTED, "committed": wire.READ_COMMITTED}


def run_round(target: Target, transactions: int, fetch_bytes: int, fetches: int) -> Figures:
    """Return the processor time of a fetch under both isolation levels, and their ratio."""
    with fresh_topic(target, 1) as topic:
        with started(partial(_fill, target.address, topic, transactions // PRODUCERS), PRODUCERS) as pipes:
            collect(pipes)
        with Connection(target.address) as connection:
            end = _wait_until_stable(connection, topic, transactions * (RECORDS_PER_TRANSACTION + 1))
            offsets = range(0, end - 2 * fetch_bytes // VALUE_BYTES, max(1, end // fetches))
            seconds = dict.fromkeys(LEVELS, 0.0)
            for number in range(PASSES):
                for name in list(LEVELS)[:: 1 if number % 2 else -1]:
                    before = target.cpu_seconds()
                    for offset in offsets:
                        _fetch(connection, topic, offset, fetch_bytes, LEVELS[name])
                    seconds[name] += target.cpu_seconds() - before
    count = PASSES * len(offsets)
    figures = {f"{name}_cpu_us_per_fetch": each * 1e6 / count for name, each in seconds.items()}
    return figures | {"committed_to_uncommitted": seconds["committed"] / seconds["uncommitted"]}


def _fill(address: str, topic: str, transactions: int, pipe: Pipe[Any, Any], index: int) -> None:
    try:
        producer = new_producer(address, f"{topic}-{index}")
        for number in range(transactions):
            producer.begin_transaction()
            for _ in range(RECORDS_PER_TRANSACTION):
                producer.produce(topic, b"x" * VALUE_BYTES, partition=0)
            if number % ABORTED_ONE_IN:
                producer.commit_transaction(CALL_TIMEOUT_SECONDS)
            else:
                producer.flush(CALL_TIMEOUT_SECONDS)  # otherwise its records are not even sent
                producer.abort_transaction(CALL_TIMEOUT_SECONDS)
        pipe.send(None)
    except Exception as error:  # report any error to the parent process
        pipe.send(f"{type(error).__name__}: {error}")


def _wait_until_stable(connection: Connection, topic: str, end: int) -> int:
    """Return the end of the log once no transaction is open in it."""
    deadline = time.monotonic() + PHASE_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        high_watermark, last_stable = _fetch(connection, topic, 0, wire.PARTITION_MAX_BYTES, wire.READ_COMMITTED)
        if high_watermark == last_stable >= end:
            return last_stable
        time.sleep(0.01)
    raise RoundFailed(f"the last stable offset is {last_stable}, the high watermark {high_watermark}, not {end}")


def _fetch(connection: Connection, topic: str, offset: int, max_bytes: int, isolation: int) -> tuple[int, int]:
    """Fetch from an offset; return the high watermark and the last stable offset."""
    connection.send(wire.fetch_request(topic, [(0, offset)], 0, partition_max_bytes=max_bytes, isolation=isolation))
    connection.receive_response()
    ((_, begin, end),) = wire.fetch_response(connection.buffer)
    if begin == end:
        raise RoundFailed(f"a fetch at offset {offset} of {topic} has no records")
    high_watermark, last_stable = unpack_from(">qq", connection.buffer, 18 + 6 + len(topic) + 6)
    return high_watermark, last_stable
