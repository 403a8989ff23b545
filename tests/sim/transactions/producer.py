"""A transactional producer, one instance after the other: what applications do, and what happens to them.

An instance writes to several partitions in a transaction, and may consume offsets of a group in it. It commits or
aborts; or it crashes, in the middle or while its commit is on its way; or it sleeps until its transaction times out;
or it is taken for dead, and goes on beside the one that has replaced it, as a zombie.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from enum import Enum
from typing import Any, NamedTuple

from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import Record, build_batch
from tests.faults.checker import make_value
from tests.sim.client import Unanswered
from tests.sim.producer import ACKNOWLEDGED, RETRIABLE

from .group_offsets import GroupOffsets
from .history import Consumed, Instance, Transaction, TransactionHistory
from .requests import TransactionRequests

PAUSE_S_MAX = 0.3
KEYS = (b"a", b"b", b"c", b"d", b"e")
BATCHES_MAX, BATCH_RECORDS_MAX = 2, 2
CONSUMED_MAX = 3
# What nobody answers for so long, an application gives up, and starts again.
GIVE_UP_S = 8.0
ZOMBIE_S_MAX = 3.0
TIMED_OUT_S_MAX = 1.5  # beyond the timeout
COORDINATOR_RETRIABLE = RETRIABLE | {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
}


class InstanceOver(Exception):
    """The instance has crashed, is fenced, or has given up."""


class MustAbort(Exception):
    """A request was refused: the transaction cannot be committed any more."""

    def __init__(self, what: str, code: ErrorCode, *, is_sure: bool) -> None:
        """`is_sure` says that nothing came of it: no attempt before was left unanswered."""
        super().__init__(f"{what}: {code.name}")
        self.is_sure = is_sure


class Ending(Enum):
    COMMIT = "commit"
    ABORT = "abort"
    CRASH = "crash"
    CRASH_AT_COMMIT = "crash while the commit is on its way"
    TIME_OUT = "sleep beyond the timeout"
    BECOME_ZOMBIE = "be replaced, and go on"


_SHARES = {
    Ending.COMMIT: 60,
    Ending.ABORT: 14,
    Ending.CRASH: 6,
    Ending.CRASH_AT_COMMIT: 6,
    Ending.TIME_OUT: 6,
    Ending.BECOME_ZOMBIE: 8,
}


class Account(NamedTuple):
    """What all instances of a producer have in common."""

    name: str
    partitions: list[TopicPartition]
    always: TopicPartition  # is written to in every transaction
    group: GroupOffsets | None
    is_v2: bool


class ProducerInstance:
    def __init__(
        self, account: Account, requests: TransactionRequests, history: TransactionHistory, number: int
    ) -> None:
        self._account, self._requests, self._history = account, requests, history
        self._instance = Instance(account.name, number)
        self._client, self._random = requests.client, requests.client.random
        self._sequences: dict[TopicPartition, int] = {}
        self._added: set[TopicPartition] = set()
        self._is_broken = False  # a batch was given up: with V1 only a new epoch makes its sequence right again
        self._position = 0
        self._last_words: asyncio.Task[None] | None = None

    async def initialize(self) -> None:
        """Replace all instances before. Raises InstanceOver if that does not succeed."""
        await self._repeat("InitProducerId", self._requests.initialize)
        self._history.initialized(self._instance)
        if self._account.group is not None:
            self._position = await self._account.group.position(GIVE_UP_S)

    async def transact(self) -> Coroutine[Any, Any, None] | None:
        """Run one transaction; return the rest of it if this is a zombie now. Raises InstanceOver."""
        transaction = self._history.begin(self._instance)
        ending = self._random.choices([*_SHARES], [*_SHARES.values()])[0]
        self._added.clear()
        try:
            await self._write(transaction)
            if ending is Ending.BECOME_ZOMBIE:
                return self._haunt(transaction)
            await self._finish(transaction, ending)
        except MustAbort:
            await self._abort()
        return None

    async def _finish(self, transaction: Transaction, ending: Ending) -> None:
        if ending is Ending.CRASH:
            raise InstanceOver
        if ending is Ending.CRASH_AT_COMMIT:
            self._history.commit_asked(transaction, is_last=True)
            self._last_words = asyncio.ensure_future(self._ask_in_vain())
            raise InstanceOver
        if ending is Ending.TIME_OUT:
            await self._client.clock.sleep(self._requests.timeout_ms / 1000 + self._random.uniform(0, TIMED_OUT_S_MAX))
            await self._write(transaction)
        if ending is Ending.ABORT:
            await self._abort()
        else:
            await self._commit(transaction)

    async def _ask_in_vain(self) -> None:
        with suppress(Unanswered):
            await self._requests.end(is_commit=True)

    async def _haunt(self, transaction: Transaction) -> None:
        """Go on as if nothing had happened."""
        await self._client.clock.sleep(self._random.uniform(0, ZOMBIE_S_MAX))
        try:
            if self._random.random() < 0.5:
                await self._write(transaction)
            await self._commit(transaction)
        except (MustAbort, InstanceOver):
            return

    # The parts of a transaction

    async def _write(self, transaction: Transaction) -> None:
        group = self._account.group
        if group is not None and transaction.consumed is None:
            end = self._position + self._random.randint(1, CONSUMED_MAX)
            transaction.consumed = Consumed(group.group_id, self._position, end)
        count = self._random.randint(1, len(self._account.partitions))
        partitions = self._random.sample(self._account.partitions, count)
        if self._account.always not in partitions:
            partitions.append(self._account.always)
        if not self._account.is_v2:
            await self._add(partitions)
        for partition in partitions:
            for _ in range(self._random.randint(1, BATCHES_MAX)):
                await self._produce(transaction, partition)
        if group is not None and transaction.consumed is not None:
            await self._commit_offset(group, transaction.consumed, transaction.label)

    async def _add(self, partitions: list[TopicPartition]) -> None:
        new = [each for each in partitions if each not in self._added]
        if new:
            await self._repeat("AddPartitionsToTxn", lambda: self._requests.add_partitions(new))
            self._added.update(new)

    async def _produce(self, transaction: Transaction, partition: TopicPartition) -> None:
        count = self._random.randint(1, BATCH_RECORDS_MAX)
        keys = [self._random.choice(KEYS) for _ in range(count)]
        origins = [self._history.send(transaction, partition, key) for key in keys]
        now_ms = self._client.clock.time_ms()
        sequence = self._sequences.get(partition, 0)
        values = map(make_value, origins)
        batch = build_batch(
            [Record(index, now_ms, *pair) for index, pair in enumerate(zip(keys, values, strict=True))],
            producer_id=self._requests.producer[0],
            producer_epoch=self._requests.producer[1],
            base_sequence=sequence,
            is_transactional=True,
        )

        async def produce() -> ErrorCode:
            code, base_offset = await self._requests.produce(partition, batch)
            if code is ErrorCode.NONE and base_offset >= 0:
                self._history.written(transaction, origins, base_offset)
            return ErrorCode.NONE if code in ACKNOWLEDGED else code

        self._is_broken = True
        await self._repeat("Produce", produce)
        self._is_broken = False
        self._sequences[partition] = sequence + count

    async def _commit_offset(self, group: GroupOffsets, consumed: Consumed, label: str) -> None:
        if not self._account.is_v2:
            await self._repeat("AddOffsetsToTxn", lambda: self._requests.add_group(group.group_id))
        await self._repeat(
            "TxnOffsetCommit",
            lambda: self._requests.commit_offset(group.group_id, group.partition, consumed.end, label),
        )

    # The end

    async def _commit(self, transaction: Transaction) -> None:
        self._history.commit_asked(transaction, is_last=False)
        try:
            await self._repeat("EndTxn", lambda: self._requests.end(is_commit=True))
        except MustAbort as refusal:
            if refusal.is_sure:
                transaction.refused()
            raise
        self._history.committed(transaction)
        if transaction.consumed is not None:
            self._position = transaction.consumed.end
        self._ended()

    async def _abort(self) -> None:
        """Abort, and go on with another epoch where a batch was given up. Raises InstanceOver if that fails."""
        try:
            await self._repeat("EndTxn", lambda: self._requests.end(is_commit=False))
            if not self._account.is_v2 and self._is_broken:
                producer = self._requests.producer
                await self._repeat("InitProducerId", lambda: self._requests.initialize(producer))
                self._sequences.clear()
        except MustAbort as refusal:
            raise InstanceOver from refusal
        self._is_broken = False
        self._ended()

    def _ended(self) -> None:
        if self._account.is_v2:
            self._sequences.clear()

    # One request, until it is answered

    async def _repeat(self, what: str, ask: Callable[[], Coroutine[Any, Any, ErrorCode]]) -> None:
        """Ask until it is done. Raises MustAbort if it is refused, InstanceOver if nobody says either for long."""
        clock = self._client.clock
        until_s, is_first = clock.monotonic() + GIVE_UP_S, True
        while clock.monotonic() < until_s:
            was_fenced = self._history.is_fenced(self._instance)
            try:
                code = await ask()
            except Unanswered:
                code = ErrorCode.REQUEST_TIMED_OUT
            if code is ErrorCode.NONE:
                if was_fenced and is_first:
                    self._history.taken_from_fenced(self._instance, what)
                return
            if code not in COORDINATOR_RETRIABLE:
                raise MustAbort(what, code, is_sure=is_first)
            is_first = False
            await self._client.back_off()
        raise InstanceOver


class TransactionalProducer:
    def __init__(
        self, account: Account, make_requests: Callable[[], TransactionRequests], history: TransactionHistory
    ) -> None:
        """`make_requests` gives each instance connections of its own."""
        self._account, self._make_requests, self._history = account, make_requests, history
        self._zombies: list[asyncio.Task[None]] = []
        self._number = 0
        self.name = account.name
        self.is_stopping = self._has_stopped = False

    @property
    def is_at_rest(self) -> bool:
        return self._has_stopped and all(each.done() for each in self._zombies)

    async def run(self) -> None:
        while not self.is_stopping:
            self._number += 1
            requests = self._make_requests()
            instance = ProducerInstance(self._account, requests, self._history, self._number)
            try:
                await self._live(instance, requests)
            except (InstanceOver, MustAbort, Unanswered):
                await requests.client.back_off()
        self._has_stopped = True

    async def _live(self, instance: ProducerInstance, requests: TransactionRequests) -> None:
        await instance.initialize()
        while not self.is_stopping:
            zombie = await instance.transact()
            if zombie is not None:
                self._zombies.append(asyncio.ensure_future(zombie))
                return
            await requests.client.clock.sleep(requests.client.random.uniform(0, PAUSE_S_MAX))
