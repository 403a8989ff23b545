"""A broker's life, over and over on one data directory: start, check, load, an end that is not its own choice.

Clients are raw producers of every kind, and librdkafka's idempotent producer and consumer, which live through all of
it. The checker holds each start to everything that was acknowledged and seen in the lives before.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from flowstone.types import TopicPartition
from flowstone.wire.record_batch import CorruptBatch
from tests.support.broker_process import UP, BrokerDied, BrokerProcess
from tests.support.ports import HOST, free_ports

from .checker import ACKS_ALL, Anomaly, Fault, History, ObservedLog
from .crash_points import CrashPoint
from .raw_client import RawClient, Refused
from .small_broker import SmallBroker
from .traffic import IN_FLIGHT_MAX, RawProducer, SteadyConsumer, SteadyProducer

TOPIC = "orders"
LOAD_S_MAX = 5.0
POLL_S = 0.002
RAW_PRODUCERS: Sequence[tuple[int, bool]] = (
    (1, False),
    (1, True),
    (ACKS_ALL, False),
    (ACKS_ALL, True),
)  # acks, idempotent


class Rounds:
    def __init__(
        self,
        data: Path,
        stack: ExitStack,
        *,
        seed: int = 0,
        partition_count: int = 3,
        in_flight_max: int = IN_FLIGHT_MAX,
        settings: Mapping[str, str] | None = None,
        program: Sequence[str] = UP,
        has_steady_producer: bool = True,
    ) -> None:
        """Makes the topic. A steady producer retries for ever: not for a broker that may not serve a partition."""
        self.data = data
        self.chance = random.Random(seed)
        self.history = History()
        self.partitions = [TopicPartition(TOPIC, number) for number in range(partition_count)]
        self.raw_producers = RAW_PRODUCERS
        self.refusals: list[Refused] = []
        self.output = ""  # what the brokers said
        self._in_flight_max = in_flight_max
        self._settings = settings
        self._program = program
        self._port = free_ports()
        with self.start() as broker:
            with RawClient(broker.bootstrap) as client:
                client.create_topic(TOPIC, partition_count)
            broker.terminate()
        bootstrap = f"{HOST}:{self._port}"
        self._producer: SteadyProducer | None = None
        if has_steady_producer:
            self._producer = SteadyProducer(bootstrap, self.history, self.partitions)
            stack.callback(self._producer.close)
        self._consumer = SteadyConsumer(bootstrap, self.history, self.partitions)
        stack.callback(self._consumer.close)

    def start(self, crash_point: CrashPoint | None = None) -> BrokerProcess:
        program = (crash_point.program if crash_point is not None else None) or self._program
        tracer = crash_point.tracer if crash_point is not None else ()
        return SmallBroker(self.data, port=self._port, settings=self._settings, program=program, tracer=tracer)

    def live_and_die(
        self, fault: Fault, crash_point: CrashPoint, end: Callable[[BrokerProcess], None] = BrokerProcess.kill
    ) -> list[Anomaly]:
        """One life. `fault` is what ended the one before; `end` ends this one, unless a crash point comes first."""
        self.history.life += 1
        broker = self.start(crash_point)
        anomalies: list[Anomaly] = []
        try:
            broker.wait_ready()
            anomalies = self.check(broker, fault)
            if not anomalies:
                self.load(broker, crash_point.acknowledged, end)
        except (BrokerDied, ConnectionError):
            assert broker.wait_exit() == -signal.SIGKILL, broker.output
        finally:
            broker.kill()
        self.output += broker.output
        return anomalies

    @property
    def summary(self) -> str:
        """For the reports of long runs."""
        return f"{self.history.life} lives, {self.history.acknowledged_count} records acknowledged, 0 anomalies"

    def check(self, broker: BrokerProcess, fault: Fault) -> list[Anomaly]:
        """What is wrong, once every client has heard what became of its requests."""
        with RawClient(broker.bootstrap) as client:
            if self._producer is not None:
                self._producer.rest(lambda: broker.is_running)
            with self._consumer.resting():
                logs, anomalies = observe(client, self.partitions)
                anomalies += self.history.check(logs, fault)
                errors = [*self._consumer.errors, *(self._producer.errors if self._producer is not None else ())]
        return anomalies + [Anomaly("client error", self.partitions[0], -1, str(error)) for error in errors]

    def load(self, broker: BrokerProcess, acknowledged: int, end: Callable[[BrokerProcess], None]) -> None:
        """Produces and consumes until so much is acknowledged, then ends the broker."""
        producers = [
            RawProducer(
                broker.bootstrap,
                self.history,
                self.partitions,
                acks,
                idempotent=idempotent,
                in_flight_max=self._in_flight_max,
                seed=self.chance.getrandbits(32),
            )
            for acks, idempotent in self.chance.sample(self.raw_producers, 2)
        ]
        for producer in producers:
            producer.start()
        if self._producer is not None:
            self._producer.resume()
        target, deadline = len(self.history.acknowledged) + acknowledged, time.monotonic() + LOAD_S_MAX
        while len(self.history.acknowledged) < target and time.monotonic() < deadline:
            if not broker.is_running or not any(producer.is_running for producer in producers):
                break
            time.sleep(POLL_S)
        end(broker)
        broker.kill()
        for producer in producers:
            producer.join()
        self.refusals += [producer.refusal for producer in producers if producer.refusal is not None]


def observe(
    client: RawClient, partitions: Sequence[TopicPartition]
) -> tuple[dict[TopicPartition, ObservedLog], list[Anomaly]]:
    """The logs that can be read, and why the others cannot."""
    logs, anomalies = {}, []
    for partition in partitions:
        try:
            logs[partition] = client.read_log(partition)
        except Refused as refusal:
            anomalies.append(Anomaly("unavailable", partition, -1, str(refusal)))
        except CorruptBatch as damage:
            anomalies.append(Anomaly("bad checksum", partition, -1, str(damage)))
    return logs, anomalies


def describe(anomalies: Sequence[Anomaly], more: str = "") -> str:
    """What a failed test says."""
    return "\n".join([f"{len(anomalies)} anomalies", *map(str, anomalies[:10]), more])
