"""Bugs of share groups that a cluster must not have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from flowstone.broker.sharing.acknowledgements import Acknowledgement, Type
from flowstone.broker.sharing.key_index import key_of_none
from flowstone.broker.sharing.keyed_share_partition import KeyedSharePartition
from flowstone.broker.sharing.led_share_partition import LedSharePartition
from flowstone.broker.sharing.letters.dead_letters import DeadLetterQueues
from flowstone.broker.sharing.lock_queue import LockQueue
from flowstone.broker.sharing.reads.log_reads import _Aborts
from flowstone.broker.sharing.share_changes import Change
from flowstone.broker.sharing.share_config import ShareConfig
from flowstone.broker.sharing.share_partition import SharePartition
from flowstone.broker.sharing.window import AVAILABLE, Range
from flowstone.coordinator.share.records import DeliveryState
from flowstone.coordinator.share.shard import ShareShard
from flowstone.errors import ErrorCode
from tests.sim.simulation import QUEUES

from .bug import Bug, Patches


def answer_before_the_state_is_durable() -> Patches:
    """An acknowledgement is answered while its write is under way."""
    acknowledge = LedSharePartition.acknowledge

    def at_once(self: LedSharePartition, *arguments: Any) -> None:
        acknowledge(self, *arguments)

    yield patch.object(LedSharePartition, "acknowledge", at_once)


def next_of_a_key_before_it_is_durable() -> Patches:
    """The next record of a key may be delivered once the one before is acknowledged, durably or not."""
    acknowledge = KeyedSharePartition.acknowledge

    def early(self: KeyedSharePartition, member: str, acknowledgements: Sequence[Acknowledgement], now_ms: int) -> int:
        ticket = acknowledge(self, member, acknowledgements, now_ms)
        for first, last, kind in acknowledgements:
            if kind is Type.ACCEPT:
                self._finish(first, last)
        return ticket

    yield patch.object(KeyedSharePartition, "acknowledge", early)


def every_record_is_the_head_of_its_key() -> Patches:
    """Keys are not heeded."""
    index = KeyedSharePartition.index

    def free(self: KeyedSharePartition, first: int, last: int, keys: Sequence[int], *rest: Any) -> None:
        index(self, first, last, [key and key_of_none(offset) for offset, key in enumerate(keys, first)], *rest)

    yield patch.object(KeyedSharePartition, "index", free)


def one_delivery_too_many() -> Patches:
    """A record that was released at the delivery count limit is delivered again."""
    target = SharePartition._target

    def lenient(self: SharePartition, acquired: Range, kind: Type) -> DeliveryState:
        if kind is Type.RELEASE and acquired.count == self.config.delivery_count_limit:
            return AVAILABLE
        return target(self, acquired, kind)

    yield patch.object(SharePartition, "_target", lenient)


def no_backoff() -> Patches:
    """A released record is delivered again at once."""
    yield patch.object(ShareConfig, "backoff", lambda self, delivery_count: 0)


def locks_never_end() -> Patches:
    """What a member keeps is never released."""
    yield patch.object(LockQueue, "take_due", lambda self, now_ms: ())
    yield patch.object(LockQueue, "next_deadline", lambda self: None)


def start_passes_an_unfinished_record() -> Patches:
    """The stored start is one record too far."""
    take_write = SharePartition.take_write

    def too_far(self: SharePartition) -> Change | None:
        change = take_write(self)
        return None if change is None else change._replace(start_offset=change.start_offset + 1)

    yield patch.object(SharePartition, "take_write", too_far)


def read_without_the_updates() -> Patches:
    """A new leader gets the start offset, and not what is finished behind it."""
    read = ShareShard.read

    def partial(self: ShareShard, *arguments: Any) -> Any:
        effects = read(self, *arguments)
        effects.replies[:] = [(token, answer._replace(batches=())) for token, answer in effects.replies]
        return effects

    yield patch.object(ShareShard, "read", partial)


def letters_without_sequences() -> Patches:
    """A batch of letters is appended again whenever it is sent again, and it is always sent twice."""
    attempt = DeadLetterQueues._try

    async def twice(self: DeadLetterQueues, topic: Any, index: int, batch: bytes) -> ErrorCode:
        await attempt(self, topic, index, batch)
        return await attempt(self, topic, index, batch)

    yield patch.object(DeadLetterQueues, "_try", twice)
    yield patch("flowstone.log.partition.producers.producer_state.ProducerStates.check", lambda *arguments: None)


def aborted_records_are_delivered() -> Patches:
    """A group that reads committed records gets those of aborted transactions too."""
    yield patch.object(_Aborts, "has", lambda self, header, read: False)


BUGS = {
    bug.name: bug
    for bug in (
        Bug(answer_before_the_state_is_durable, ("finished and delivered",), first_seed=1, loads=QUEUES),
        Bug(next_of_a_key_before_it_is_durable, ("I3",), first_seed=22, loads=QUEUES),
        Bug(every_record_is_the_head_of_its_key, ("I3", "I2"), loads=QUEUES),
        Bug(one_delivery_too_many, ("I5",), loads=QUEUES),
        Bug(no_backoff, ("I6",), loads=QUEUES),
        Bug(locks_never_end, ("I8 lost",), loads=QUEUES),
        Bug(start_passes_an_unfinished_record, ("I8 lost",), loads=QUEUES),
        Bug(read_without_the_updates, ("finished and delivered",), loads=QUEUES),
        Bug(letters_without_sequences, ("I8 letter",), loads=QUEUES),
        Bug(aborted_records_are_delivered, ("aborted",), loads=QUEUES),
    )
}
