"""A data directory with a known history, and the command line."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from flowstone.types import TopicPartition

from .broker_process import SOURCE, UP, BrokerProcess
from .checker import ACKS_ALL, Anomaly, Fault, History
from .raw_client import RawClient
from .rounds import observe
from .traffic import batch_of

COMMAND_TIMEOUT_S = 30
RECORDS_PER_BATCH = 4
FILL_BATCHES = 600


class FilledBroker:
    """Two partitions with several segments each, all of it acknowledged; the broker is stopped or killed."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.history = History()
        self.partitions = [TopicPartition("orders", number) for number in range(2)]

    def start(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        program: Sequence[str] = UP,
        tracer: Sequence[str] = (),
    ) -> BrokerProcess:
        self.history.life += 1
        return BrokerProcess(self.data, settings=settings, program=program, tracer=tracer)

    def fill(self, client: RawClient, batch_count: int, acks: int = ACKS_ALL, producer: str = "filler") -> None:
        """Refused ends it: what was refused is not in the history as acknowledged."""
        for number in range(batch_count):
            partition = self.partitions[number % len(self.partitions)]
            origins = [self.history.next_origin(partition, producer) for _ in range(RECORDS_PER_BATCH)]
            base_offset = client.produce(partition, batch_of(origins), acks)
            for offset, origin in enumerate(origins, base_offset):
                self.history.acknowledge(partition, offset, origin, acks)

    def check(self, client: RawClient, fault: Fault = Fault.KILL) -> list[Anomaly]:
        logs, anomalies = observe(client, self.partitions)
        return anomalies + self.history.check(logs, fault)


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> FilledBroker:
    broker = FilledBroker(tmp_path_factory.mktemp("template") / "data")
    with broker.start() as process, RawClient(process.bootstrap) as client:
        client.create_topic("orders", len(broker.partitions))
        broker.fill(client, FILL_BATCHES)
    return broker


@pytest.fixture
def filled(template: FilledBroker, tmp_path: Path) -> FilledBroker:
    """A copy of a data directory whose broker was killed after a fill of several segments a partition."""
    broker = FilledBroker(tmp_path / "data")
    shutil.copytree(template.data, broker.data)
    broker.history = copy.deepcopy(template.history)
    return broker


@pytest.fixture
def run() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a flowstone command to its end."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "flowstone.cli", *map(str, arguments)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "200"},
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )

    return run
