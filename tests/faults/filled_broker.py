"""A data directory with a known history, filled by one producer that waits for every answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from flowstone.types import TopicPartition
from tests.support.broker_process import UP, BrokerProcess

from .checker import ACKS_ALL, Anomaly, Fault, History
from .raw_client import RawClient
from .rounds import TOPIC, observe
from .small_broker import SmallBroker
from .traffic import batch_of

RECORDS_PER_BATCH = 4
PARTITION_COUNT = 2


class FilledBroker:
    """Two partitions and their history. Every start is another life."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.history = History()
        self.partitions = [TopicPartition(TOPIC, number) for number in range(PARTITION_COUNT)]

    def start(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        program: Sequence[str] = UP,
        tracer: Sequence[str] = (),
    ) -> BrokerProcess:
        self.history.life += 1
        return SmallBroker(self.data, settings=settings, program=program, tracer=tracer)

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
