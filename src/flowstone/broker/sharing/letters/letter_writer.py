"""Copies the records of one share partition to its dead letter queue, each of them once (ADR 0027).

For each batch of letters: the share coordinator stores its records, producer id and sequence; the batch
is sent until the queue has it; the change of state that archives the records also stores that the batch is finished.
After a crash in between, the leader that loads the state finds the batch unfinished, and sends the same batch again.
One batch of a share partition is under way at a time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from flowstone.broker.coordinators.group_settings import GroupSettingsSource
from flowstone.broker.sharing.letters.dead_letters import DeadLetterQueues, Sent, without_first
from flowstone.broker.sharing.share_partition import SharePartition
from flowstone.coordinator.share.records import LetterBatch, ShareKey
from flowstone.promise import Promise
from flowstone.replication.partition import Partition


class LetterWriter:
    def __init__(
        self,
        key: ShareKey,
        partition: Partition,
        queues: DeadLetterQueues,
        settings: GroupSettingsSource,
        store: Callable[[LetterBatch], Awaitable[None]],
    ) -> None:
        """`store` makes a batch durable in the share partition's state; it raises ApiError if the leader is fenced."""
        self._key, self._partition, self._queues, self._settings, self._store = key, partition, queues, settings, store
        self.last: LetterBatch | None = None  # as stored
        # The finished batch, which the next change of state stores.
        self.finished: LetterBatch | None = None
        self._archived: Promise[None] = Promise()

    def has_work(self, machine: SharePartition) -> bool:
        """Return whether records wait for their copies, or a batch was begun before the state was loaded."""
        return bool(machine.copies) or (self.last is not None and bool(self.last.ranges))

    async def copy(self, machine: SharePartition) -> int:
        """Write one batch; return the number of letters. The owner must then write the state, with `finished`.

        Raises ApiError if the partition is closed, or led by another broker.
        """
        group_id = self._key.group_id
        settings, batch, is_repeated = self._settings.of(group_id), self.last, True
        if batch is None or not batch.ranges:
            letters, is_repeated = machine.copies.take(), False
            batch = await self._queues.plan(self._partition, group_id, settings, letters, self.last)
            if batch is None:
                machine.copied(letters)
                return 0
            machine.copies.give_back(without_first(letters, batch.letter_count))
            await self._begin(batch)
        while True:
            sent = await self._queues.send(self._partition, group_id, settings, batch, is_repeated=is_repeated)
            if sent is not Sent.PRODUCER_LOST:
                break
            batch, is_repeated = await self._queues.with_new_producer(batch), False
            await self._begin(batch)
        # The sequence advances even if the letters could not be written: an earlier attempt may have written them.
        self.finished, self._archived = batch.finished(), Promise()
        machine.copied(batch.ranges)
        return batch.letter_count if sent is Sent.WRITTEN else 0

    async def _begin(self, batch: LetterBatch) -> None:
        await self._store(batch)
        self.last = batch

    async def archived(self) -> None:
        """Return once a change has stored the finished batch."""
        if self.finished is not None:
            await self._archived

    def stored(self, letters: LetterBatch | None) -> None:
        """Record that a change of state with this finished batch, or without one, is durable."""
        if letters is not None and letters is self.finished:
            self.last, self.finished = letters, None
            self._archived.set_result(None)
