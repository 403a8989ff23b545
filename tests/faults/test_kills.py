"""SIGKILL under load, again and again on the same data: nothing acknowledged or seen is lost (S1 to S3, S7, S8).

FLOWSTONE_FAULTS_KILLS sets how many kills, FLOWSTONE_FAULTS_SEED where their choice begins.
"""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from flowstone.config import LONG_MAX
from flowstone.types import TopicPartition

from .broker_process import UP, BrokerDied, BrokerProcess, free_port
from .checker import ACKS_ALL, Fault, History
from .crash_points import CrashPoint, choose
from .raw_client import RawClient
from .traffic import RawProducer, SteadyConsumer, SteadyProducer

KILLS = int(os.environ.get("FLOWSTONE_FAULTS_KILLS", "40"))
FIRST_SEED = int(os.environ.get("FLOWSTONE_FAULTS_SEED", "1"))
KILLS_PER_DIRECTORY = 10
LOAD_S_MAX = 5.0
POLL_S = 0.002

TOPIC = "orders"
PARTITIONS = [TopicPartition(TOPIC, number) for number in range(3)]


class KillRun:
    """One data directory through its kills."""

    def __init__(self, data: Path, seed: int, stack: ExitStack) -> None:
        self.data = data
        self.seed = seed
        self.chance = random.Random(seed)
        self.port = free_port()
        # Every other directory leaves flushing to the page cache: a killed process loses nothing then either.
        self.settings = {"flush.messages": "1" if seed % 2 else str(LONG_MAX)}
        self.history = History()
        with self.start(CrashPoint("the first")) as broker:
            with RawClient(broker.bootstrap) as client:
                client.create_topic(TOPIC, len(PARTITIONS))
            broker.terminate()
        bootstrap = f"127.0.0.1:{self.port}"
        self.producer = SteadyProducer(bootstrap, self.history, PARTITIONS)
        stack.callback(self.producer.close)
        self.consumer = SteadyConsumer(bootstrap, self.history, PARTITIONS)
        stack.callback(self.consumer.close)

    def start(self, crash_point: CrashPoint) -> BrokerProcess:
        program, tracer = crash_point.program or UP, crash_point.tracer
        return BrokerProcess(self.data, port=self.port, settings=self.settings, program=program, tracer=tracer)

    def live_and_die(self, crash_point: CrashPoint) -> None:
        """A start, a check, load, a kill; an exact crash point may cut it short anywhere."""
        broker = self.start(crash_point)
        try:
            broker.wait_ready()
            self.check(broker, crash_point)
            self.load(broker, crash_point)
        except (BrokerDied, ConnectionError):
            assert broker.wait_exit() == -signal.SIGKILL, broker.output
        finally:
            broker.kill()
        assert "Traceback" not in broker.output, broker.output

    def check(self, broker: BrokerProcess, crash_point: CrashPoint) -> None:
        """Once every client has heard what became of its requests."""
        with RawClient(broker.bootstrap) as client:
            self.producer.rest(lambda: broker.is_running)
            with self.consumer.resting():
                anomalies = self.history.check(client.read_logs(PARTITIONS), Fault.KILL)
        assert not anomalies, "\n".join([*map(str, anomalies[:10]), crash_point.name, broker.output])

    def load(self, broker: BrokerProcess, crash_point: CrashPoint) -> None:
        plan = ((1, False), (1, True), (ACKS_ALL, False), (ACKS_ALL, True))
        producers = [
            RawProducer(broker.bootstrap, self.history, PARTITIONS, acks, idempotent=idempotent, seed=self.seed)
            for acks, idempotent in self.chance.sample(plan, 2)
        ]
        for producer in producers:
            producer.start()
        self.producer.resume()
        target, deadline = len(self.history.acknowledged) + crash_point.acknowledged, time.monotonic() + LOAD_S_MAX
        while broker.is_running and len(self.history.acknowledged) < target and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if crash_point.pauses:
            broker.pause()
        broker.kill()
        for producer in producers:
            producer.join()
            assert producer.refusal is None, producer.refusal


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + max(KILLS // KILLS_PER_DIRECTORY, 1)))
def test_a_killed_broker_keeps_what_it_acknowledged_and_what_was_seen(tmp_path: Path, seed: int) -> None:
    with ExitStack() as stack:
        run = KillRun(tmp_path / "data", seed, stack)
        for _ in range(min(KILLS, KILLS_PER_DIRECTORY)):
            run.live_and_die(choose(run.chance))
        run.live_and_die(CrashPoint("the last", acknowledged=0))
        assert run.history.acknowledged_count > 0
