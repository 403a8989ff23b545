"""Clients under way while things break, each in a thread: a `History` hears what they sent, were told and saw.

Raw producers live for one connection and never retry, so each is a session of its own. The steady pair is librdkafka's:
an idempotent producer that goes on across restarts of the broker, and a consumer that checks every checksum.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka import TopicPartition as ClientPartition

from flowstone.types import TopicPartition
from flowstone.wire.record_batch import NO_PRODUCER_ID, Record, build_batch

from .checker import ACKS_ALL, History, Origin, make_value
from .raw_client import RawClient, Refused

RECORDS_PER_BATCH_MAX = 8
IN_FLIGHT_MAX = 4
QUEUED_MAX = 50  # records of the steady producer that wait for their reports
REST_TIMEOUT_S = 30
POLL_S = 0.05

_names = itertools.count(1)


def batch_of(origins: Sequence[Origin], **identity: int) -> bytes:
    now_ms = int(time.time() * 1000)
    return build_batch([Record(at, now_ms, None, make_value(each)) for at, each in enumerate(origins)], **identity)  # type: ignore[arg-type]


class RawProducer:
    """Sends small batches to its partitions in turn until the connection breaks, a batch is refused, or `stop`."""

    def __init__(
        self,
        bootstrap: str,
        history: History,
        partitions: Sequence[TopicPartition],
        acks: int,
        *,
        idempotent: bool = False,
        in_flight_max: int = IN_FLIGHT_MAX,
        seed: int = 0,
    ) -> None:
        self.name = f"raw{next(_names)}"
        self.refusal: Refused | None = None
        self._history = history
        self._partitions = itertools.cycle(partitions)
        self._acks = acks
        self._idempotent = idempotent
        self._in_flight_max = in_flight_max
        self._random = random.Random(seed)
        self._client = RawClient(bootstrap)
        self._stopping = threading.Event()
        self._in_flight: deque[tuple[TopicPartition, list[Origin]]] = deque()
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def join(self) -> None:
        """Returns once it has ended by itself."""
        self._thread.join(REST_TIMEOUT_S)
        assert not self._thread.is_alive(), f"{self.name} is stuck"
        self._client.close()

    def _run(self) -> None:
        with suppress(OSError, Refused):  # without an id it never begins
            producer_id = self._client.new_producer_id() if self._idempotent else NO_PRODUCER_ID
            while not self._stopping.is_set() and self.refusal is None:
                if len(self._in_flight) < self._in_flight_max:
                    self._send(producer_id)
                else:
                    self._receive()
            while self._in_flight:
                self._receive()

    def _send(self, producer_id: int) -> None:
        partition = next(self._partitions)
        count = self._random.randint(1, RECORDS_PER_BATCH_MAX)
        origins = [self._history.next_origin(partition, self.name) for _ in range(count)]
        identity = {}
        if producer_id >= 0:
            identity = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": origins[0].sequence}
        self._in_flight.append((partition, origins))
        self._client.send_produce(partition, batch_of(origins, **identity), self._acks)

    def _receive(self) -> None:
        partition, origins = self._in_flight[0]
        try:
            base_offset = self._client.receive_produce()
        except Refused as refusal:
            self.refusal = self.refusal or refusal
        else:
            for offset, origin in enumerate(origins, base_offset):
                self._history.acknowledge(partition, offset, origin, self._acks)
        self._in_flight.popleft()


class SteadyProducer:
    """An idempotent producer that retries until it hears the outcome: every value once, in order, whatever happens."""

    def __init__(self, bootstrap: str, history: History, partitions: Sequence[TopicPartition]) -> None:
        self.name = f"steady{next(_names)}"
        self.errors: list[KafkaError] = []
        self._history = history
        self._partitions = itertools.cycle(partitions)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 50,
                "message.timeout.ms": 120_000,
                "log_level": 0,
            }
        )
        self._going = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    def resume(self) -> None:
        self._going.set()

    def rest(self, is_served: Callable[[], bool] = lambda: True) -> None:
        """Sends no more and waits for every outcome. ConnectionError if the broker goes meanwhile."""
        self._going.clear()
        deadline = time.monotonic() + REST_TIMEOUT_S
        while len(self._producer) and time.monotonic() < deadline:
            if not is_served():
                raise ConnectionError
            self._producer.flush(POLL_S)
        assert not len(self._producer), f"{len(self._producer)} records of {self.name} are still without an outcome"

    def close(self) -> None:
        self._ended = True
        self._going.set()
        self._thread.join(REST_TIMEOUT_S)
        self._producer.purge()

    def _run(self) -> None:
        while self._going.wait() and not self._ended:
            if len(self._producer) >= QUEUED_MAX:
                self._producer.poll(POLL_S)
                continue
            partition = next(self._partitions)
            origin = self._history.next_origin(partition, self.name)

            def report(error: KafkaError | None, message: Message, origin: Origin = origin) -> None:
                self._report(error, message, origin)

            self._producer.produce(
                partition.topic, make_value(origin), partition=partition.partition, on_delivery=report
            )
            self._producer.poll(0)

    def _report(self, error: KafkaError | None, message: Message, origin: Origin) -> None:
        if error is not None:
            self.errors.append(error)
            return
        partition, offset = message.partition(), message.offset()
        assert partition is not None, f"{origin} was acknowledged without a partition"
        self._history.acknowledge(TopicPartition(message.topic() or "", partition), offset, origin, ACKS_ALL)


class SteadyConsumer:
    """Reads all partitions from their start, again and again where it left off, across restarts of the broker."""

    def __init__(self, bootstrap: str, history: History, partitions: Sequence[TopicPartition]) -> None:
        self._history = history
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "faults",
                "enable.auto.commit": False,
                "check.crcs": True,
                "fetch.wait.max.ms": 50,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "auto.offset.reset": "error",
                "log_level": 0,
            }
        )
        self._consumer.assign([ClientPartition(*partition, 0) for partition in partitions])
        self.errors: list[KafkaError] = []
        self._ended = threading.Event()
        self._resting = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="consumer", daemon=True)
        self._thread.start()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Sees nothing meanwhile."""
        with self._resting:
            yield

    def close(self) -> None:
        self._ended.set()
        self._thread.join(REST_TIMEOUT_S)
        self._consumer.close()

    def _run(self) -> None:
        while not self._ended.is_set():
            with self._resting:
                messages = self._consumer.consume(500, POLL_S)
                for message in messages:
                    self._take(message)

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            if error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._BAD_MSG, KafkaError._AUTO_OFFSET_RESET):
                self.errors.append(error)
            return
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        self._history.see(TopicPartition(message.topic() or "", partition), offset, message.value() or b"")
