"""Bugs that are planted in the state machines: the random histories must find each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from flowstone.broker.sharing.acknowledgements import Acknowledgement, Type
from flowstone.broker.sharing.key_index import key_of_none
from flowstone.broker.sharing.keyed_share_partition import KeyedSharePartition
from flowstone.broker.sharing.share_changes import Change
from flowstone.broker.sharing.share_partition import SharePartition
from flowstone.broker.sharing.window import ACQUIRED, ARCHIVED, AVAILABLE, Range
from flowstone.coordinator.share.records import Delay, DeliveryState
from tests.unit.broker.sharing import model, test_keyed_share_partition

SEEDS = 400


class AppliesFailedWrites(SharePartition):
    def written(self, ticket_is_durable: bool, now_ms: int) -> None:
        super().written(True, now_ms)


class NeverExpires(SharePartition):
    def tick(self, now_ms: int) -> None:
        self._locks.clear()


class ExpiresRenewedLocks(SharePartition):
    def _renew(self, first: int, last: int, now_ms: int) -> None:
        pass


class OneDeliveryTooMany(SharePartition):
    def _target(self, acquired: Range, kind: Type) -> DeliveryState:
        if kind is Type.RELEASE and acquired.count == self.config.delivery_count_limit:
            return AVAILABLE
        return super()._target(acquired, kind)


class TakesAcknowledgementsOfOthers(SharePartition):
    def _check(self, member: str, first: int, last: int, kind: Type) -> None:
        if last > self.end_offset:
            super()._check(member, first, last, kind)
        for each in self.window.overlapping(max(first, self.window.start), last):
            if each.state is not ACQUIRED or each.target is not None:
                super()._check(member, first, last, kind)


class ForgetsWhatAGoneMemberIsWaitingFor(SharePartition):
    def release_member(self, member: str, now_ms: int) -> None:
        waiting = [each for each in self.window if each.owner == member and each.target is not None]
        super().release_member(member, now_ms)
        for each in waiting:
            each.owner = member


class StartPassesReleasedRecords(SharePartition):
    def take_write(self) -> Change | None:
        change = super().take_write()
        return None if change is None else change._replace(start_offset=change.start_offset + 1)


class AppliesHalfAnAcknowledgement(SharePartition):
    def acknowledge(self, member: str, acknowledgements: Sequence[Acknowledgement], now_ms: int) -> int:
        ticket = 0
        for each in acknowledgements:
            ticket = super().acknowledge(member, [each], now_ms) or ticket
        return ticket


class SkipsTheBackoff(SharePartition):
    def _became_available(self, each: Range, now_ms: int) -> None:
        each.not_before_ms = 0
        super()._became_available(each, now_ms)


class MiscountsCompleted(SharePartition):
    def _apply(self, each: Range, now_ms: int) -> None:
        super()._apply(each, now_ms)
        if each.state is ARCHIVED:
            self._completed -= 1


class NextOfKeyBeforeDurable(KeyedSharePartition):
    def acknowledge(self, member: str, acknowledgements: Sequence[Acknowledgement], now_ms: int) -> int:
        ticket = super().acknowledge(member, acknowledgements, now_ms)
        for first, last, kind in acknowledgements:
            if kind is Type.ACCEPT:
                self._finish(first, last)
        return ticket


class EveryRecordIsAHead(KeyedSharePartition):
    def index(self, first: int, last: int, keys: Sequence[int], delays: Iterable[Delay], now_ms: int) -> None:
        free = [key and key_of_none(offset) for offset, key in enumerate(keys, first)]
        super().index(first, last, free, delays, now_ms)


class ForgetsTheNextOfAKey(KeyedSharePartition):
    def _finish(self, first: int, last: int) -> None:
        ready = self._ready[:]
        super()._finish(first, last)
        self._ready = ready


class DeliversTooEarly(KeyedSharePartition):
    def _add_delay(self, offset: int, not_before_ms: int, now_ms: int) -> None:
        pass


class FinishesOnlyHeads(KeyedSharePartition):
    def log_start_moved(self, offset: int) -> None:
        self.indexed_to = max(self.indexed_to, offset)
        SharePartition.log_start_moved(self, offset)


PLAIN = [
    AppliesFailedWrites,
    NeverExpires,
    ExpiresRenewedLocks,
    OneDeliveryTooMany,
    TakesAcknowledgementsOfOthers,
    ForgetsWhatAGoneMemberIsWaitingFor,
    StartPassesReleasedRecords,
    AppliesHalfAnAcknowledgement,
    SkipsTheBackoff,
    MiscountsCompleted,
]
KEYED = [NextOfKeyBeforeDurable, EveryRecordIsAHead, ForgetsTheNextOfAKey, DeliversTooEarly, FinishesOnlyHeads]


def is_found(run: Callable[[int], Any]) -> bool:
    for seed in range(SEEDS):
        try:
            run(seed)
        except (AssertionError, KeyError, IndexError, ValueError):
            return True
    return False


@pytest.mark.parametrize("bug", PLAIN, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: type[SharePartition]) -> None:
    assert is_found(lambda seed: model.History(seed, bug).run(60))


@pytest.mark.parametrize("bug", KEYED, ids=lambda bug: bug.__name__)
def test_a_planted_bug_in_key_order_is_found(bug: type[KeyedSharePartition]) -> None:
    assert is_found(lambda seed: test_keyed_share_partition.History(seed, bug).run(80))
