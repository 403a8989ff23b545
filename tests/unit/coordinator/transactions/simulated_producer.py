"""A producer as stock clients are: it asks, asks again when no answer comes, and goes on or gives up by the answer.

A V1 producer waits on one ordered connection, as librdkafka does: what it no longer waits for never arrives. A request
of V2 may arrive at any time, and more than once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from flowstone.coordinator.transactions import messages as m
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from tests.unit.coordinator.transactions.simulated_partition import SimulatedPartition, Tag

RETRIED = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
ADDITIONS_MAX = 3
AGAIN = 0.2  # how likely it is that a producer has waited for long enough and asks again
TIMEOUTS_MS = (3_000, 15_000, 60_000)


@dataclass(frozen=True)
class Sent:
    """A request on its way; `tag` is the transaction it is meant for."""

    producer: SimulatedProducer
    number: int
    method: str
    request: Any
    tag: Tag


class SimulatedProducer:
    def __init__(
        self,
        name: str,
        transactional_id: str,
        version: int,
        random: Random,
        partitions: dict[TopicPartition, SimulatedPartition],
        send: Callable[[Sent], None],
    ) -> None:
        self.name, self.transactional_id, self.version = name, transactional_id, version
        self.is_dead = False
        self.waits_for: Sent | None = None
        self.first_pair = (-1, -1)
        self.heard: dict[Tag, bool] = {}  # the outcomes that it was told
        self.asked_to_commit: set[Tag] = set()
        self._random, self._partitions, self._send = random, partitions, send
        self._pair = (-1, -1)
        self._transaction = 0
        self._sent_count = 0
        self._additions_left = 0
        self._is_open = False
        self._is_refused = False  # for now: it asks again

    @property
    def tag(self) -> Tag:
        return self.name, self._transaction

    def step(self) -> None:
        """Do what comes next, or ask once more for what is not answered."""
        if self.is_dead:
            return
        if self.waits_for is not None:
            if self._is_refused or self._random.random() < AGAIN:
                self._ask(self.waits_for.method, self.waits_for.request)
        elif self._pair == (-1, -1):
            self._initialize()
        elif not self._is_open:
            self._begin()
        elif self._additions_left:
            self._additions_left -= 1
            self._add()
        else:
            self._end(is_commit=self._random.random() < 0.7)

    def _initialize(self, pair: tuple[int, int] = (-1, -1)) -> None:
        timeout_ms = self._random.choice(TIMEOUTS_MS)
        self._ask("init_producer_id", m.InitProducerIdRequest(self.transactional_id, timeout_ms, *pair))

    def _begin(self) -> None:
        if self._random.random() < 0.1:
            self._initialize(self._pair)
            return
        self._is_open = True
        self._transaction += 1
        self._additions_left = self._random.randint(0 if self.version == m.V2 else 1, ADDITIONS_MAX)
        if not self._additions_left:
            self._end(is_commit=False)

    def _add(self) -> None:
        partitions = frozenset(self._random.sample(sorted(self._partitions), self._random.randint(1, 2)))
        self._ask(
            "add_partitions", m.AddPartitionsRequest(self.transactional_id, *self._pair, partitions, self.version)
        )

    def _end(self, *, is_commit: bool) -> None:
        if is_commit:
            self.asked_to_commit.add(self.tag)
        request = m.EndTransactionRequest(self.transactional_id, *self._pair, is_commit, self.version)
        self._ask("end_transaction", request)

    def _ask(self, method: str, request: Any) -> None:
        self._sent_count += 1
        self._is_refused = False
        self.waits_for = Sent(self, self._sent_count, method, request, self.tag)
        self._send(self.waits_for)

    def answered(self, sent: Sent, response: Any) -> None:
        if self.is_dead or sent is not self.waits_for:
            return
        self._is_refused = response.error_code in RETRIED
        if self._is_refused:
            return
        self.waits_for = None
        is_done = response.error_code is ErrorCode.NONE
        if sent.method == "init_producer_id":
            self.is_dead = not is_done
            self._pair = response.producer_id, response.producer_epoch
            if sent.request.producer_id == -1:
                self.first_pair = self._pair
        elif sent.method == "add_partitions":
            if not (is_done and self._write(sent.request.partitions)):
                self._fail()
        elif is_done:
            self._ended(sent.request.is_commit, response)
        elif response.error_code is ErrorCode.INVALID_TXN_STATE and sent.request.is_commit and self.version == m.V2:
            self._end(is_commit=False)  # it was aborted by time
        else:
            self.is_dead = True

    def _write(self, partitions: frozenset[TopicPartition]) -> bool:
        return all(self._partitions[each].write(*self._pair, self.tag) for each in sorted(partitions))

    def _fail(self) -> None:
        """Abort with V2, where the coordinator may have aborted by time; with V1 that is fatal."""
        if self.version == m.V2:
            self._end(is_commit=False)
        else:
            self.is_dead = True

    def _ended(self, is_commit: bool, response: m.EndTransactionResponse) -> None:
        self.heard[self.tag] = is_commit
        self._is_open = False
        if self.version == m.V2:
            self._pair = response.producer_id, response.producer_epoch
