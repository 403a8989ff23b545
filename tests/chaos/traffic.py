"""The clients of a cluster under fire, all of them librdkafka's, each in a thread: what an application would run.

`PacedProducer` sends at a steady pace, to each partition by itself: one that stalls does not hold up the others.
`GroupMember` reads for its group and commits what it has read, one commit after the other. The consumer that sees
everything, whatever groups do, is the house's (`tests.faults.traffic.SteadyConsumer`).
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as ClientPartition

from flowstone.types import TopicPartition
from tests.faults.checker import ACKS_ALL, Anomaly, Origin, make_value
from tests.faults.group_history import NOT_COMMITTED, GroupHistory

from .history import ClusterHistory, Journal

GROUP = "chaos"
QUEUED_PER_PARTITION_MAX = 20
IN_FLIGHT_MAX = 5  # librdkafka's own, where it is idempotent
REST_TIMEOUT_S = 90.0
END_TIMEOUT_S = 30.0
POLL_S = 0.05
MESSAGE_TIMEOUT_MS = 120_000
# What a client waits for a broker that is silent, not gone; it is part of how long recovery takes.
REQUEST_TIMEOUT_MS = 4_000
SESSION_MS = 3_000
_CLIENT = {
    "socket.timeout.ms": REQUEST_TIMEOUT_MS,
    "socket.connection.setup.timeout.ms": 2_000,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 250,
    "topic.metadata.refresh.interval.ms": 2_000,
    "log_level": 0,
}
# What a member hears while its group moves on: it reads again from the last commit.
_MOVED_ON = {
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError._NO_OFFSET,
    KafkaError._ASSIGNMENT_LOST,
}

# What a program is told to try again; it is counted. Anything else no member should hear.
_TRY_AGAIN = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._WAIT_COORD,
}

_names = itertools.count(1)


class PacedProducer:
    """Idempotent with acks=all; with acks=1 it never retries, so that nothing of it is sent twice.

    With more than one request in flight, librdkafka may write a record twice when a leader moves (its issue 4953, with
    any broker): it hears OUT_OF_ORDER_SEQUENCE_NUMBER for a later request, takes a new producer epoch, and sends the
    earlier one again though that was written. So one producer sends one request at a time, and must never do so.
    """

    def __init__(
        self,
        bootstrap: str,
        history: ClusterHistory,
        partitions: Sequence[TopicPartition],
        acks: int,
        records_per_second: float,
        *,
        in_flight_max: int = IN_FLIGHT_MAX,
    ) -> None:
        self.is_pipelined = in_flight_max > 1
        self.name = f"acks{acks}.{next(_names)}"
        self.errors: Counter[str] = Counter()
        self._history, self._partitions, self._acks = history, partitions, acks
        self._pace_s = len(partitions) / records_per_second
        safe = {"enable.idempotence": True} if acks == ACKS_ALL else {"acks": acks, "retries": 0}
        self._producer = Producer(
            {
                **_CLIENT,
                **safe,
                "bootstrap.servers": bootstrap,
                "max.in.flight": in_flight_max,
                "linger.ms": 2,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 200,
                "request.timeout.ms": REQUEST_TIMEOUT_MS,
                "message.timeout.ms": MESSAGE_TIMEOUT_MS,
            }
        )
        self._queued: Counter[TopicPartition] = Counter()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def rest(self) -> None:
        """Sends no more, and waits until it has heard of everything."""
        self._ended.set()
        self._thread.join(REST_TIMEOUT_S + END_TIMEOUT_S)
        assert not self._thread.is_alive(), f"{self.name} is stuck"

    @property
    def unanswered(self) -> int:
        return len(self._producer)

    def close(self) -> None:
        self._ended.set()
        self._producer.purge()
        self._thread.join(END_TIMEOUT_S)

    def _run(self) -> None:
        while not self._ended.is_set():
            due_s = time.monotonic() + self._pace_s
            for partition in self._partitions:
                if self._queued[partition] < QUEUED_PER_PARTITION_MAX:
                    self._send(partition)
            while (left_s := due_s - time.monotonic()) > 0 and not self._ended.is_set():
                self._producer.poll(min(left_s, POLL_S))
        self._producer.flush(REST_TIMEOUT_S)

    def _send(self, partition: TopicPartition) -> None:
        origin, sent_s = self._history.next_origin(partition, self.name), time.monotonic()

        def report(error: KafkaError | None, message: Message) -> None:
            self._report(error, message, partition, origin, sent_s)

        self._queued[partition] += 1
        self._producer.produce(partition.topic, make_value(origin), partition=partition.partition, on_delivery=report)

    def _report(
        self, error: KafkaError | None, message: Message, partition: TopicPartition, origin: Origin, sent_s: float
    ) -> None:
        self._queued[partition] -= 1
        if error is not None:
            self.errors[error.name()] += 1
            return
        self._history.answer(partition, message.offset(), origin, self._acks, sent_s)


class GroupMember:
    """Reads what its group gives it and commits after every poll; what it is told goes into the group's history.

    A commit that nobody could take then is tried again with the next poll, though it may have no records.
    """

    def __init__(
        self, bootstrap: str, history: GroupHistory, journal: Journal, partitions: Sequence[TopicPartition]
    ) -> None:
        self.errors: Counter[str] = Counter()
        self._history, self._journal = history, journal
        self._topic = partitions[0].topic
        self._consumer = Consumer(
            {
                **_CLIENT,
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": SESSION_MS // 6,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": int(POLL_S * 1000),
            }
        )
        self._consumer.subscribe([self._topic])
        self._uncommitted: dict[TopicPartition, int] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"member{next(_names)}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join(END_TIMEOUT_S)
        assert not self._thread.is_alive(), f"{self._thread.name} is stuck"

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                messages = [each for each in self._consumer.consume(500, POLL_S) if each.error() is None]
                self._take(messages)
                for partition, end in list(self._uncommitted.items()):
                    self._commit(partition, end)
        finally:
            self._consumer.close()

    def _take(self, messages: Sequence[Message]) -> None:
        for message in messages:
            number, offset = message.partition(), message.offset()
            assert number is not None
            assert offset is not None
            self._history.deliver(TopicPartition(self._topic, number), (offset,))
            self._uncommitted[TopicPartition(self._topic, number)] = offset + 1

    def _commit(self, partition: TopicPartition, offset: int) -> None:
        promised = self._history.acknowledged().get(partition, NOT_COMMITTED)
        self._history.send_commit(partition, offset)
        try:
            told = self._consumer.commit(offsets=[ClientPartition(*partition, offset)], asynchronous=False)
            error = told[0].error if told else None
        except KafkaException as refusal:
            error = refusal.args[0]
        if error is None:
            self._history.acknowledge_commit(partition, offset)
            self._journal.write("committed", partition=str(partition), offset=offset)
            if offset < promised:
                detail = f"{promised} had been acknowledged before this was sent"
                self._history.anomalies.append(Anomaly("commit regression", partition, offset, detail))
        elif error.code() in _TRY_AGAIN:
            self.errors[error.name()] += 1
            return
        elif error.code() not in _MOVED_ON:
            self._history.refuse(partition, str(error))
        del self._uncommitted[partition]


def committed_offsets(bootstrap: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """As its coordinator has them. KafkaException if nobody answers as such for long."""
    consumer = Consumer({**_CLIENT, "bootstrap.servers": bootstrap, "group.id": GROUP, "enable.auto.commit": False})
    wanted, deadline = [ClientPartition(*partition) for partition in partitions], time.monotonic() + END_TIMEOUT_S
    try:
        while True:
            try:
                told = consumer.committed(wanted, timeout=END_TIMEOUT_S)
                break
            except KafkaException:  # the coordinator moves
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)
        return {
            TopicPartition(each.topic, each.partition): each.offset if each.offset >= 0 else NOT_COMMITTED
            for each in told
        }
    finally:
        consumer.close()
