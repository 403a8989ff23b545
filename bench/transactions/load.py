"""A round of transactional producers: transactions one after the other, or at intervals, until its time is over.

The client is confluent-kafka with the same settings for every broker, imported only in the processes that use it. A
transaction's records are acknowledged before its commit is timed, so the latency of a commit is that of EndTxn alone.
A round counts only if a read_committed consumer finds every record of every transaction, and no other.
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection as Pipe
from typing import TYPE_CHECKING, Any

from bench.load import Figures, collect, percentile_ms, started, trigger
from bench.topics import RoundFailed, Target, fresh_topic

if TYPE_CHECKING:
    from confluent_kafka import Producer

VALUE_BYTES = 100
CALL_TIMEOUT_SECONDS = 30
# More threads of one process would wait for its interpreter lock instead of the broker.
PRODUCERS_PER_PROCESS_MAX = 25
CONSUME_RECORDS_MAX = 10_000
CONSUME_WAIT_SECONDS = 0.2
CHECK_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class TransactionLoad:
    """The work of one round: each producer commits `records` records at a time, over the partitions in turn."""

    records: int
    partitions: int
    seconds: float
    producers: int = 1
    interval_s: float = 0.0  # from one transaction of a producer to the next; 0: one after the other

    @property
    def processes(self) -> int:
        return -(-self.producers // PRODUCERS_PER_PROCESS_MAX)


@dataclass(slots=True)
class Share:
    """What the producers of one process did. Times are of the monotonic clock that all processes share."""

    started: float = 0.0
    ended: float = 0.0
    commits: array[float] = field(default_factory=lambda: array("d"))
    transactions: array[float] = field(default_factory=lambda: array("d"))


def run_round(target: Target, load: TransactionLoad) -> Figures:
    """Return a round's figures. Raises RoundFailed if a transaction failed or records are missing."""
    with fresh_topic(target, load.partitions) as topic:
        with started(partial(work, target.address, load, topic), load.processes) as pipes:
            collect(pipes)  # every producer has its producer id
            cpu_before = target.cpu_seconds()
            shares: list[Share] = collect(trigger(pipes))
            cpu_after = target.cpu_seconds()
        figures = _figures(shares, cpu_after - cpu_before)
        committed = sum(len(share.commits) for share in shares)
        with started(partial(check, target.address, load, topic, committed * load.records), 1) as pipes:
            collect(pipes)
    return figures


def work(address: str, load: TransactionLoad, topic: str, pipe: Pipe[Any, Any], index: int) -> None:
    """Run a process of producers: send None when they have their ids, and their share after a trigger."""
    try:
        first = index * PRODUCERS_PER_PROCESS_MAX
        ids = [f"{topic}-{number}" for number in range(first, min(first + PRODUCERS_PER_PROCESS_MAX, load.producers))]
        with ThreadPoolExecutor(len(ids)) as threads:
            producers = list(threads.map(partial(new_producer, address), ids))
            pipe.send(None)
            pipe.recv()
            shares = list(threads.map(partial(produce, load=load, topic=topic), producers))
        pipe.send(joined(shares))
    except Exception as error:  # report any error to the parent process
        pipe.send(f"{type(error).__name__}: {error}")


def new_producer(address: str, transactional_id: str) -> Producer:
    """Return a producer that has its producer id and epoch."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "transactional.id": transactional_id})
    producer.init_transactions(CALL_TIMEOUT_SECONDS)
    return producer


def produce(producer: Producer, load: TransactionLoad, topic: str) -> Share:
    """Commit transactions until the round's time is over."""
    value, clock, share, sent = b"x" * VALUE_BYTES, time.monotonic, Share(), 0
    share.started = clock()
    ends = share.started + load.seconds
    due = share.started + random.random() * load.interval_s
    while (begun := _wait_until(due)) < ends:
        due += load.interval_s
        producer.begin_transaction()
        for _ in range(load.records):
            producer.produce(topic, value, partition=sent % load.partitions)
            sent += 1
        if producer.flush(CALL_TIMEOUT_SECONDS):
            raise RoundFailed("records of a transaction were not acknowledged in time")
        flushed = clock()
        producer.commit_transaction(CALL_TIMEOUT_SECONDS)
        share.ended = clock()
        share.commits.append(share.ended - flushed)
        share.transactions.append(share.ended - begun)
    return share


def _wait_until(due: float) -> float:
    """Return the time once it is at least `due`."""
    while (now := time.monotonic()) < due:
        time.sleep(due - now)
    return now


def joined(shares: Sequence[Share]) -> Share:
    """Return several producers' shares as one."""
    whole = Share(min(share.started for share in shares), max(share.ended for share in shares))
    for share in shares:
        whole.commits += share.commits
        whole.transactions += share.transactions
    return whole


def check(address: str, load: TransactionLoad, topic: str, expected: int, pipe: Pipe[Any, Any], _index: int) -> None:
    """Send None if a read_committed consumer finds the expected number of records, or else what it found."""
    try:
        found = count_committed(address, topic, load.partitions, expected)
        pipe.send(None if found == expected else f"{found} of {expected} committed records can be read")
    except Exception as error:  # report any error to the parent process
        pipe.send(f"{type(error).__name__}: {error}")


def count_committed(address: str, topic: str, partitions: int, expected: int) -> int:
    """Return how many records a read_committed consumer reads until all partitions have ended."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "bench",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)])
    ended: set[int | None] = set()
    found, deadline = 0, time.monotonic() + CHECK_TIMEOUT_SECONDS
    # Markers of the last transaction may follow its acknowledgement: an end before them is not the end.
    while (found < expected or len(ended) < partitions) and time.monotonic() < deadline:
        for message in consumer.consume(CONSUME_RECORDS_MAX, CONSUME_WAIT_SECONDS):
            error = message.error()
            if error is None:
                found += 1
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            else:
                raise RoundFailed(f"consuming {topic}: {error}")
    consumer.close()
    return found


def _figures(shares: Sequence[Share], cpu_seconds: float) -> Figures:
    whole = joined(shares)
    count = len(whole.commits)
    return {
        "transactions_per_s": count / (whole.ended - whole.started),
        "commit_p50_ms": percentile_ms(whole.commits, 0.50),
        "commit_p99_ms": percentile_ms(whole.commits, 0.99),
        "transaction_p50_ms": percentile_ms(whole.transactions, 0.50),
        "transaction_p99_ms": percentile_ms(whole.transactions, 0.99),
        "broker_cpu_ms_per_transaction": cpu_seconds * 1e3 / count,
    }
