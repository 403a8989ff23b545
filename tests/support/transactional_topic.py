"""Transactions of a running broker without a transaction coordinator: tests append batches and end markers themselves.

`HeldCoordinator` stands where the broker asks its coordinator, and answers when, and what, a test says.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flowstone.errors import ErrorCode
from flowstone.replication.partition import ACKS_ALL
from flowstone.types import TopicPartition
from flowstone.wire.end_markers import end_marker
from flowstone.wire.record_batch import Record, build_batch
from tests.support.running_app import RunningApp

COORDINATOR_EPOCH = 1


def transactional_batch(value: bytes, producer_id: int, epoch: int = 0, sequence: int = 0) -> bytes:
    """A batch of one record."""
    record = Record(0, int(time.time() * 1000), b"k", value)
    return build_batch(
        [record], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, is_transactional=True
    )


class TransactionalTopic:
    """One partition of a broker in this process."""

    def __init__(self, app: RunningApp, topic: str) -> None:
        self._app, self.topic = app, topic
        self._sequences: dict[tuple[int, int], int] = {}

    def write(self, producer_id: int, *values: bytes, epoch: int = 0) -> None:
        """Append a batch of each value to the producer's transaction."""
        for value in values:
            sequence = self._sequences.get((producer_id, epoch), 0)
            self._append(transactional_batch(value, producer_id, epoch, sequence), is_own=False)
            self._sequences[producer_id, epoch] = sequence + 1

    def write_plain(self, value: bytes) -> None:
        self._append(build_batch([Record(0, int(time.time() * 1000), b"k", value)]), is_own=False)

    def end(self, producer_id: int, *, commits: bool, epoch: int = 0, version: int = 1) -> None:
        """Append the producer's end marker, once all before it is committed."""
        marker = end_marker(producer_id, epoch, COORDINATOR_EPOCH, commits, int(time.time() * 1000))
        self._append(marker, is_own=True, version=version)

    def _append(self, batch: bytes, *, is_own: bool, version: int = 1) -> None:
        async def append() -> None:
            partition = self._app.app.services.partitions.get(self.topic, 0)
            end = partition.append(batch, ACKS_ALL, is_own=is_own, transaction_version=version).last_offset + 1
            committed: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            partition.when_committed(end, committed.set_result)
            assert await committed == ErrorCode.NONE

        self._app.run(append())


class Question(NamedTuple):
    """What the coordinator was asked, and the promise of what it says of every partition."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    verify_only: bool
    answer: asyncio.Future[ErrorCode]


class HeldCoordinator:
    """A coordinator whose answers come when a test gives them; without a test's doing it says `answer`."""

    def __init__(self, answer: ErrorCode | None = ErrorCode.NONE) -> None:
        self.answer = answer  # None: questions wait for the test
        self.verified: set[TopicPartition] = set()  # known at once
        self.questions: list[Question] = []

    def is_verified(
        self, _transactional_id: str, _producer_id: int, _producer_epoch: int, partition: TopicPartition
    ) -> bool:
        return partition in self.verified

    async def add_or_verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        verify_only: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        answer: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        question = Question(transactional_id, producer_id, producer_epoch, tuple(partitions), verify_only, answer)
        self.questions.append(question)
        if self.answer is not None:
            answer.set_result(self.answer)
        return dict.fromkeys(partitions, await answer)
