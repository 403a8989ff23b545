"""Tellers, which carry out orders in transactions of librdkafka: a process that is killed, stopped and replaced.

    python -m tests.chaos.teller BOOTSTRAP GROUP ORDERS ACCOUNTS COUNT FIRST MODE NAME

Each of the COUNT threads reads orders, writes the legs of their transfers and commits the offsets, all in one
transaction, again and again. With MODE `fixed`, thread N has input partition FIRST + N for itself and the transactional
id that belongs to the partition: a successor with the same id fences it. With MODE `group`, the group assigns the
partitions and the transactional id is new: only the group's generation tells a live member from a zombie (KIP-447).

A thread may hang: librdkafka's `send_offsets_to_transaction` never returns if the group coordinator vanishes meanwhile
(2.16; its issues 5511 and 5456). Such a member still sends heartbeats, and a rebalance would wait for it. So members
must poll again within `POLL_INTERVAL_MS_MAX`, or their group goes on without them.

What a thread hears goes to the standard output, a line of JSON each. SIGTERM ends the process after the transactions
that are under way. An error that librdkafka calls fatal ends a producer, and the thread starts over with another one.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as ClientPartition

from flowstone.types import TopicPartition

from .transfers import transfer

FIXED, IN_GROUP = "fixed", "group"
TRANSACTION_TIMEOUT_MS = 10_000
POLL_INTERVAL_MS_MAX = 10_000  # as long as a transaction may take
ORDERS_MAX = 3  # of one transaction
ABORT_CHANCE = 0.1
PACE_S = 0.15  # of a thread's transactions
CALL_TIMEOUT_S = 15.0
RETRIES_MAX = 20
START_OVER_S = 0.3
POLL_S = 0.5
END_S_MAX = 60.0  # a call of the library may take long, and is tried again
UNSTABLE_PAUSE_S = 1.0
CLIENT = {
    "socket.timeout.ms": 4_000,
    "socket.connection.setup.timeout.ms": 2_000,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 250,
    "topic.metadata.refresh.interval.ms": 2_000,
    "log_level": 0,
}


class Aborted(Exception):
    """The transaction cannot be committed any more, and was aborted or will be."""


class Teller:
    def __init__(self, job: Job) -> None:
        self._job, self._ended = job, job.ended
        self._name, self._mode, self._number = job.name, job.mode, job.number
        self._chance = random.Random(f"{job.name}-{job.number}")
        self._transactions = 0
        self._starts = 0

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                self._serve()
            except KafkaException as failure:
                say("started over", name=self._name, number=self._number, error=failure.args[0].name())
                time.sleep(START_OVER_S)
            except Aborted as failure:
                say("started over", name=self._name, number=self._number, error=str(failure.__cause__))
                time.sleep(START_OVER_S)

    def _serve(self) -> None:
        """Go on until something fails that only a new producer can mend."""
        self._starts += 1
        transactional_id = f"{self._job.group}-{self._number}"
        if self._mode == IN_GROUP:
            transactional_id = f"{self._name}-{self._number}-{self._starts}"
        self._producer = Producer(
            {
                **CLIENT,
                "bootstrap.servers": self._job.bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 1,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 200,
                "request.timeout.ms": 4_000,
            }
        )
        self._retried(lambda: self._producer.init_transactions(CALL_TIMEOUT_S))
        consumer = self._open_consumer()
        try:
            while not self._ended.is_set():
                started_s = time.monotonic()
                messages = consumer.consume(self._chance.randint(1, ORDERS_MAX), POLL_S)
                good = [each for each in messages if each.error() is None]
                if any(_has_no_position(each.error()) for each in messages):
                    self._rewind(consumer)
                elif good:
                    self._handle(consumer, good)
                    self._ended.wait(max(0.0, started_s + PACE_S - time.monotonic()))
        finally:
            consumer.close()

    def _open_consumer(self) -> Consumer:
        consumer = Consumer(
            {
                **CLIENT,
                "bootstrap.servers": self._job.bootstrap,
                "group.id": self._job.group,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "session.timeout.ms": 3_000,
                "max.poll.interval.ms": POLL_INTERVAL_MS_MAX,
                "heartbeat.interval.ms": 500,
                "fetch.wait.max.ms": 50,
                "fetch.queue.backoff.ms": 20,
            }
        )
        if self._mode == IN_GROUP:
            consumer.subscribe([self._job.orders])
        else:
            self._assign(consumer)
        return consumer

    def _assign(self, consumer: Consumer) -> None:
        consumer.assign(self._committed(consumer, [ClientPartition(self._job.orders, self._number)]))

    def _rewind(self, consumer: Consumer) -> None:
        """Read again from the committed offsets."""
        if self._mode != IN_GROUP:
            self._assign(consumer)
            return
        assigned = consumer.assignment()
        for place in self._committed(consumer, assigned) if assigned else ():
            with contextlib.suppress(KafkaException):  # it is not assigned any more
                consumer.seek(place)

    def _committed(self, consumer: Consumer, partitions: list[ClientPartition]) -> list[ClientPartition]:
        """Return where to go on. Raises KafkaException if the offsets of an open transaction stand in the way."""
        for _ in range(RETRIES_MAX):
            places: list[ClientPartition] = self._retried(lambda: consumer.committed(partitions, CALL_TIMEOUT_S))
            errors = [each.error for each in places if each.error is not None]
            if not errors:
                for place in places:
                    if place.offset < 0:
                        say("failed", error=f"{place} has no committed offset, and had one")
                return places
            time.sleep(UNSTABLE_PAUSE_S)
        raise KafkaException(errors[0])

    def _handle(self, consumer: Consumer, messages: list[Message]) -> None:
        self._transactions += 1
        transaction = f"{self._name}.{self._number}.{self._transactions}"
        orders = [
            (TopicPartition(self._job.orders, int(each.partition() or 0)), int(each.offset() or 0)) for each in messages
        ]
        self._producer.begin_transaction()
        legs = transfer(transaction, orders)
        errors: list[KafkaError] = []

        def report(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                errors.append(error)

        is_asked = False
        try:
            for leg in legs:
                where = leg.account % self._job.partitions
                self._producer.produce(self._job.accounts, leg.encode(), partition=where, on_delivery=report)
            if self._chance.random() < ABORT_CHANCE:
                self._flush(CALL_TIMEOUT_S * self._chance.random() ** 4)  # all are written, some or none
                raise Aborted
            ends = {order: offset + 1 for order, offset in orders}
            places = [ClientPartition(*order, offset) for order, offset in ends.items()]
            metadata = consumer.consumer_group_metadata()
            self._retried(lambda: self._producer.send_offsets_to_transaction(places, metadata, CALL_TIMEOUT_S))
            is_asked = True
            self._retried(lambda: self._producer.commit_transaction(CALL_TIMEOUT_S))
            say("committed", transaction=transaction)
        except Aborted:
            self._retried(lambda: self._producer.abort_transaction(CALL_TIMEOUT_S))
            say("aborted", transaction=transaction, is_asked=is_asked)
            self._rewind(consumer)

    def _flush(self, timeout_s: float) -> None:
        try:
            self._producer.flush(timeout_s)
        except SystemError as error:  # confluent-kafka lets a fatal error out beside the results of its callbacks
            raise error.__cause__ or error from None

    def _retried(self, call: Callable[[], Any]) -> Any:
        """Call until it succeeds. Raises Aborted if the transaction must be aborted, KafkaException if all is over."""
        for _ in range(RETRIES_MAX):
            try:
                return call()
            except KafkaException as failure:
                error = failure.args[0]
                last = failure
                if error.fatal():
                    raise
                if error.txn_requires_abort():
                    raise Aborted from failure
                if not (error.retriable() or error.code() in _TRY_AGAIN):
                    raise
                time.sleep(0.05)
        raise last


_TRY_AGAIN = {
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._WAIT_COORD,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.REQUEST_TIMED_OUT,
}
_output = threading.Lock()


def _has_no_position(error: KafkaError | None) -> bool:
    """Whether librdkafka asks where to go on: it takes an unstable offset for none if a rebalance comes in between.

    Nothing else may make it ask.
    """
    if error is None or error.code() != KafkaError._AUTO_OFFSET_RESET:
        return False
    if "no previously committed offset" not in error.str().lower():
        say("failed", error=error.str())
    return True


def say(event: str, **details: object) -> None:
    """Write a line; the process may be killed right after it."""
    with _output:
        os.write(sys.stdout.fileno(), json.dumps({"event": event, **details}).encode() + b"\n")


class Job(NamedTuple):
    """What one thread is to do: for which group and topics, with which number, until when."""

    bootstrap: str
    group: str
    orders: str
    accounts: str
    partitions: int
    mode: str
    name: str
    number: int
    ended: threading.Event


class Runs(Protocol):
    """Tellers of any client."""

    def run(self) -> None: ...


def main(arguments: list[str], make: Callable[[Job], Runs]) -> None:
    """Run the tellers of a process, each in a thread."""
    bootstrap, group, orders, accounts, partitions, count, first, mode, name = arguments
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: ended.set())

    def run(teller: Runs) -> None:
        try:
            teller.run()
        except BaseException:
            say("failed", error=traceback.format_exc())
            raise

    jobs = [
        Job(bootstrap, group, orders, accounts, int(partitions), mode, name, number, ended)
        for number in range(int(first), int(first) + int(count))
    ]
    threads = [threading.Thread(target=run, args=(make(job),), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    ended.wait()
    deadline_s = time.monotonic() + END_S_MAX
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    frames = sys._current_frames()
    for thread in threads:
        if thread.is_alive() and thread.ident in frames:
            call = traceback.extract_stack(frames[thread.ident])[-1]
            say("started over", name=name, number=-1, error=f"stuck at the end in: {call.line}")
    os._exit(0)  # not through destructors of a library that is stuck


if __name__ == "__main__":
    main(sys.argv[1:], Teller)
