"""A random history of transactions, written by raw requests, and what read_committed readers must see of it."""

from __future__ import annotations

import random
from typing import NamedTuple

from flowstone.errors import ErrorCode
from flowstone.wire import messages as m
from tests.support.transactions import TransactionClient, eventually
from tests.support.wire_client import Client, batch_of
from tests.unit.broker.handlers.test_read_committed import committed
from tests.unit.transactions.states import produce_to

PRODUCERS = 4
NONE = ErrorCode.NONE
LABEL_BYTES = 8
PRODUCE_V2 = 12


class Written(NamedTuple):
    offset: int
    label: bytes
    transaction: int  # PLAIN for a record without one


PLAIN = -1


class History:
    """Producers with transactions of one to four records, some of which are aborted, in one partition."""

    def __init__(self, client: Client, topic: str, *, value_bytes: int = 20_000, seed: int = 1) -> None:
        self.client, self.topic, self._value_bytes = client, topic, value_bytes
        self._rng = random.Random(seed)
        self._producers: list[TransactionClient] = []
        self._open: dict[int, int] = {}  # by producer: its transaction
        self._sequences: dict[int, int] = {}
        self._outcomes: dict[int, bool] = {}
        self.written: list[Written] = []
        for number in range(PRODUCERS):
            self._producers.append(TransactionClient(client, f"{topic}-{number}"))
            self._producers[-1].begin()

    def connect(self, client: Client) -> None:
        """Go on with a broker that was started again."""
        self.client = client
        for producer in self._producers:
            producer.client = client

    def run(self, steps: int) -> None:
        for _ in range(steps):
            number = self._rng.randrange(PRODUCERS)
            kind = self._rng.random()
            if kind < 0.1:
                self._write_plain()
            elif kind < 0.7 or number not in self._open:
                self.write(number)
            else:
                self.end(number, commit=self._rng.random() < 0.5)

    def write(self, number: int) -> None:
        if number not in self._open:
            self._open[number] = len(self._outcomes) + len(self._open)
        transaction = self._open[number]
        sequence = self._sequences.get(number, 0)
        label, value = self._value()
        answer = produce_to(self._producers[number], PRODUCE_V2, value, sequence, self.topic)
        assert answer.error_code == NONE
        self._sequences[number] = sequence + 1
        self.written.append(Written(answer.base_offset, label, transaction))

    def _write_plain(self) -> None:
        label, value = self._value()
        answer = self.client.produce(self.topic, batch_of(value))
        assert answer.error_code == NONE
        self.written.append(Written(answer.base_offset, label, PLAIN))

    def _value(self) -> tuple[bytes, bytes]:
        label = b"%0*d" % (LABEL_BYTES, len(self.written))
        return label, label + self._rng.randbytes(self._value_bytes)

    def end(self, number: int, *, commit: bool) -> None:
        producer = self._producers[number]
        answers = []

        def has_ended() -> bool:
            answers.append(producer.end(commit=commit))
            return bool(answers[-1].error_code == NONE)

        eventually(has_ended)
        producer.wait_for_state("CompleteCommit" if commit else "CompleteAbort")
        producer.producer_id, producer.producer_epoch = answers[-1].producer_id, answers[-1].producer_epoch
        self._outcomes[self._open.pop(number)] = commit
        self._sequences[number] = 0

    def end_all(self, *, commit: bool) -> None:
        for number in sorted(self._open):
            self.end(number, commit=commit)

    def _first_offset(self, transaction: int) -> int:
        return next(each.offset for each in self.written if each.transaction == transaction)

    def stable_offset(self, log_start: int = 0) -> int | None:
        """Return the last stable offset while a transaction is open, else None."""
        firsts = [self._first_offset(transaction) for transaction in self._open.values()]
        return max(log_start, min(firsts)) if firsts else None

    def is_committed(self, record: Written) -> bool:
        return record.transaction == PLAIN or self._outcomes.get(record.transaction, False)

    def is_aborted(self, record: Written) -> bool:
        return not self._outcomes.get(record.transaction, True)

    def expected(self, start: int = 0) -> list[bytes]:
        """Return the labels of what a read_committed reader must see from an offset on."""
        stable = self.stable_offset()
        return [
            each.label
            for each in self.written
            if start <= each.offset < (each.offset + 1 if stable is None else stable) and self.is_committed(each)
        ]

    def seen(self, topic: str = "", start: int = 0) -> list[bytes]:
        """Return the labels of what such a reader does see."""
        return [value[:LABEL_BYTES] for value in committed(self.client, topic or self.topic, start)]

    def check(self) -> None:
        assert self.seen() == self.expected()
        stable = self.stable_offset()
        answer = self.client.fetch(self.topic, 0, isolation_level=1)
        assert answer.last_stable_offset == (answer.high_watermark if stable is None else stable)


def delete_records(client: Client, topic: str, offset: int) -> int:
    """Return the new start of the log."""
    wanted = m.DeleteRecordsRequestPartition(partition_index=0, offset=offset)
    request = m.DeleteRecordsRequest(
        topics=[m.DeleteRecordsRequestTopic(name=topic, partitions=[wanted])], timeout_ms=10_000
    )
    (answer,) = client.ask(2, request).topics[0].partitions
    assert answer.error_code == NONE
    return int(answer.low_watermark)


def alter(client: Client, topic: str, **configs: str) -> None:
    """Set settings of a topic, with underscores for dots."""
    entries = [
        m.IncrementalAlterConfigsRequestConfig(name=name.replace("_", "."), config_operation=0, value=value)
        for name, value in configs.items()
    ]
    resource = m.IncrementalAlterConfigsRequestResource(resource_type=2, resource_name=topic, configs=entries)
    answer = client.ask(1, m.IncrementalAlterConfigsRequest(resources=[resource]))
    assert answer.responses[0].error_code == NONE


def earliest(client: Client, topic: str) -> int:
    partition = m.ListOffsetsRequestPartition(partition_index=0, timestamp=-2)
    topics = [m.ListOffsetsRequestTopic(name=topic, partitions=[partition])]
    return int(client.ask(5, m.ListOffsetsRequest(replica_id=-1, topics=topics)).topics[0].partitions[0].offset)
