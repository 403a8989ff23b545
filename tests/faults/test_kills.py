"""SIGKILL under load, again and again on the same data: nothing acknowledged or seen is lost, in any mode (S1-S3, S7, S8).

FLOWSTONE_FAULTS_KILLS sets how many kills, FLOWSTONE_FAULTS_SEED where their choice begins.
"""

from __future__ import annotations

import os
import random
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from flowstone.config import LONG_MAX
from flowstone.types import TopicPartition

from .broker_process import BrokerDied, BrokerProcess, free_port
from .checker import ACKS_ALL, Fault, History
from .crash_points import CrashPoint, choose
from .raw_client import RawClient
from .traffic import RawProducer, SteadyConsumer, SteadyProducer

KILLS = int(os.environ.get("FLOWSTONE_FAULTS_KILLS", "40"))
FIRST_SEED = int(os.environ.get("FLOWSTONE_FAULTS_SEED", "1"))
KILLS_PER_DIRECTORY = 10
# A traced broker that never comes to the call it should die in is killed after this while.
LOAD_S_MAX = 2.0
POLL_S = 0.002

TOPIC = "orders"
PARTITIONS = [TopicPartition(TOPIC, number) for number in range(3)]


class KillRun:
    """One data directory through its kills."""

    def __init__(self, data: Path, seed: int, stack: ExitStack) -> None:
        self.data = data
        self.chance = random.Random(seed)
        self.port = free_port()
        # Every other directory leaves flushing to the page cache: a killed process loses nothing then either.
        self.settings = {"flush.messages": "1" if seed % 2 else str(LONG_MAX)}
        self.history = History()
        with self.start() as broker:
            with RawClient(broker.bootstrap) as client:
                client.create_topic(TOPIC, len(PARTITIONS))
            broker.terminate()
        bootstrap = f"127.0.0.1:{self.port}"
        self.producer = SteadyProducer(bootstrap, self.history, PARTITIONS)
        stack.callback(self.producer.close)
        self.consumer = SteadyConsumer(bootstrap, self.history, PARTITIONS)
        stack.callback(self.consumer.close)

    def start(self, crash_point: CrashPoint | None = None) -> BrokerProcess:
        tracer = crash_point.tracer if crash_point is not None else ()
        return BrokerProcess(self.data, port=self.port, settings=self.settings, tracer=tracer)

    def kill_once(self) -> None:
        crash_point = choose(self.chance)
        broker = self.start(crash_point)
        with suppress(BrokerDied, ConnectionError):
            broker.wait_ready()
            self.load_until_killed(broker, crash_point)
        broker.kill()

    def load_until_killed(self, broker: BrokerProcess, crash_point: CrashPoint) -> None:
        plan = ((1, False), (1, True), (ACKS_ALL, False), (ACKS_ALL, True))
        producers = [
            RawProducer(
                broker.bootstrap,
                self.history,
                PARTITIONS,
                acks,
                idempotent=idempotent,
                seed=self.chance.randrange(1 << 30),
            )
            for acks, idempotent in self.chance.sample(plan, 2)
        ]
        for producer in producers:
            producer.start()
        self.producer.resume()
        deadline, target = time.monotonic() + LOAD_S_MAX, len(self.history.acknowledged) + crash_point.acknowledged
        while broker.is_running and time.monotonic() < deadline:
            if not crash_point.tracer and len(self.history.acknowledged) >= target:
                break
            time.sleep(POLL_S)
        if crash_point.kind == "pause and kill":
            broker.pause()
        broker.kill()
        for producer in producers:
            producer.join()
            assert producer.refusal is None, producer.refusal

    def check(self) -> None:
        """The next start, once every client has heard what became of its requests."""
        with self.start() as broker, RawClient(broker.bootstrap) as client:
            self.producer.rest()
            self.consumer.rest()
            anomalies = self.history.check(client.read_logs(PARTITIONS), Fault.KILL)
            self.consumer.resume()
            assert not anomalies, "\n".join(map(str, anomalies[:10])) + "\n" + broker.output


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + max(KILLS // KILLS_PER_DIRECTORY, 1)))
def test_a_killed_broker_keeps_what_it_acknowledged_and_what_was_seen(tmp_path: Path, seed: int) -> None:
    with ExitStack() as stack:
        run = KillRun(tmp_path / "data", seed, stack)
        for _ in range(min(KILLS, KILLS_PER_DIRECTORY)):
            run.kill_once()
            run.check()
        assert run.history.acknowledged_count > 0
