"""Bugs of transactions that a cluster must not have."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from flowstone.broker.coordinators.broker_peers import BrokerPeers
from flowstone.broker.coordinators.marker_sender import MarkerSender
from flowstone.coordinator.groups.shard import GroupShard
from flowstone.coordinator.runtime import HostedShard
from flowstone.coordinator.transactions import endings, scans, transitions
from flowstone.coordinator.transactions.records import TransactionState, TransactionStored
from flowstone.coordinator.transactions.state import Turn
from flowstone.errors import ErrorCode
from flowstone.kernel.compaction import FilteredRecords
from flowstone.log.compaction.filter import GroupFilter
from flowstone.log.compaction.walk import StoppedAt
from flowstone.log.lifecycle import log_recovery
from flowstone.log.partition import aborted_transactions, derived_state
from flowstone.log.partition.producer_state import ProducerStates
from flowstone.log.partition.undecided_transactions import UndecidedTransactions
from tests.sim.simulation import TRANSACTIONS

from .bug import Bug, Patches

MARKER_AGAIN_S = 0.25


def write_markers_before_the_decision_is_durable() -> Patches:
    """A coordinator sends markers once its decision is appended."""
    release = HostedShard._release_when_committed

    def release_tasks_now(self: HostedShard[Any], machine: Any) -> None:
        tasks, self._held_tasks = self._held_tasks, []
        release(self, machine)
        self._perform(machine, tasks)

    yield patch.object(HostedShard, "_release_when_committed", release_tasks_now)


def answer_before_the_decision_is_committed() -> Patches:
    """A coordinator answers once its records are appended; markers wait."""
    release = HostedShard._release_when_committed

    def release_replies_now(self: HostedShard[Any], machine: Any) -> None:
        replies, self._held_back = self._held_back, []
        release(self, machine)
        self._release(machine, replies, [], ErrorCode.NONE)

    yield patch.object(HostedShard, "_release_when_committed", release_replies_now)


def last_stable_offset_one_too_high() -> Patches:
    """The first record of the first open transaction counts as stable."""
    first_unstable_offset = UndecidedTransactions.first_unstable_offset

    def one_more(self: UndecidedTransactions, high_watermark: int) -> int:
        return min(first_unstable_offset(self, high_watermark) + 1, high_watermark)

    yield patch.object(UndecidedTransactions, "first_unstable_offset", one_more)


def list_aborted_transactions_unsorted() -> Patches:
    """Aborted transactions are listed in the order in which they ended."""
    search = aborted_transactions._search

    def latest_first(*args: Any) -> Any:
        found = search(*args)
        return found if found is None else found[::-1]

    yield patch.object(aborted_transactions, "_search", latest_first)


def list_only_one_aborted_transaction() -> Patches:
    search = aborted_transactions._search

    def first(*args: Any) -> Any:
        found = search(*args)
        return found if found is None else found[:1]

    yield patch.object(aborted_transactions, "_search", first)


def end_transactions_for_anybody() -> Patches:
    """EndTxn does not look at the producer's epoch; all other requests do."""
    end, check = endings.end_transaction, TransactionStored.check_producer

    def check_without_epoch(self: TransactionStored, *producer: int) -> ErrorCode:
        code = check(self, *producer)
        return ErrorCode.NONE if code is ErrorCode.PRODUCER_FENCED else code

    def end_without_epoch(*args: Any) -> None:
        with patch.object(TransactionStored, "check_producer", check_without_epoch):
            end(*args)

    yield patch.object(endings, "end_transaction", end_without_epoch)


def show_pending_offsets() -> Patches:
    """The offsets of a transaction count from when they are written."""
    replay = GroupShard.replay

    def replay_as_committed(self: GroupShard, records: Any, producer: Any = None) -> None:
        replay(self, records)

    yield patch.object(GroupShard, "replay", replay_as_committed)


def apply_markers_twice() -> Patches:
    """Markers are sent a second time after a while, and leaders write whatever they are sent."""
    tell_written = MarkerSender._tell_written

    def tell_and_send_again(self: MarkerSender, markers: Any) -> None:
        for each in markers:
            self._clock.call_later(MARKER_AGAIN_S, lambda each=each: self._local.write(each.where, each.job.marker))
        tell_written(self, markers)

    yield patch.object(MarkerSender, "_tell_written", tell_and_send_again)
    yield patch.object(ProducerStates, "check_marker", lambda *_: None)


def forget_open_transactions_in_recovery() -> Patches:
    """A log that is opened knows its producers, but no open transaction of theirs."""
    load = derived_state.load_producers
    decode = ProducerStates.decode_snapshot.__func__  # type: ignore[attr-defined]

    def without_open(states: ProducerStates) -> ProducerStates:
        states._producers.update(states._in_transaction)
        states._in_transaction.clear()
        states.undecided = None
        return states

    def load_without_open(*args: Any, **kwargs: Any) -> Any:
        derived = load(*args, **kwargs)
        without_open(derived.states)
        return derived

    def decode_without_open(cls: type[ProducerStates], data: bytes) -> ProducerStates | None:
        states = decode(cls, data)
        return states if states is None else without_open(states)

    yield patch.object(log_recovery, "load_producers", load_without_open)
    yield patch.object(ProducerStates, "decode_snapshot", classmethod(decode_without_open))


def keep_the_epoch_at_a_timeout() -> Patches:
    """A transaction that has timed out is aborted, and its producer is not fenced."""

    def abort(turn: Turn, before: TransactionStored, *, last_epoch: int) -> ErrorCode:
        assert before.state is TransactionState.ONGOING
        endings._decide(turn, transitions.prepared_v1(before, is_commit=False, now_ms=turn.now_ms))
        return ErrorCode.NONE

    yield patch.object(scans, "fence", abort)


def drop_markers_before_their_records() -> Patches:
    """Compaction drops every marker, and leaves the records of committed transactions without one."""

    def drop(self: GroupFilter, at: StoppedAt) -> FilteredRecords | None:
        self.removed_markers.add(at.header.base_offset)
        return None

    yield patch.object(GroupFilter, "_filter_marker", drop)


def wait_for_former_leaders() -> Patches:
    """Markers wait for whoever was asked to write them, whoever leads by then."""
    yield patch.object(MarkerSender, "_follow", lambda self, before, after, records: None)
    yield patch.object(BrokerPeers, "_follow", lambda self, before, after, records: None)


_SEEN_TOO_EARLY = ("precommitted read", "aborted read", "last stable offset")
_BROKEN = (
    "refusal",
    "torn transaction",
    "lost write",
    "aborted read",
    "precommitted read",
    "taken back",
    "consumed twice",
)

BUGS: dict[str, Bug] = {
    bug.name: bug
    for bug in (
        Bug(
            write_markers_before_the_decision_is_durable,
            (*_BROKEN, "skipped record"),
            ("kill_coordinator_at_last_commit",),
            loads=TRANSACTIONS,
        ),
        Bug(
            answer_before_the_decision_is_committed,
            (*_BROKEN, "commit regression", "zombie"),
            ("kill_coordinator_at_commit", "separate_then_kill", "kill_after_acknowledgement"),
            first_seed=1,
            loads=TRANSACTIONS,
        ),
        Bug(last_stable_offset_one_too_high, _SEEN_TOO_EARLY, ("kill",), loads=TRANSACTIONS),
        Bug(
            list_aborted_transactions_unsorted, ("aborted transactions", "aborted read"), ("kill",), loads=TRANSACTIONS
        ),
        Bug(list_only_one_aborted_transaction, ("aborted read",), ("kill",), first_seed=8, loads=TRANSACTIONS),
        Bug(end_transactions_for_anybody, ("zombie", *_BROKEN), ("kill",), loads=TRANSACTIONS),
        Bug(show_pending_offsets, ("pending offset", "phantom commit"), ("kill",), loads=TRANSACTIONS),
        Bug(apply_markers_twice, _BROKEN, ("kill",), loads=TRANSACTIONS),
        Bug(forget_open_transactions_in_recovery, _SEEN_TOO_EARLY, ("kill", "restart"), loads=TRANSACTIONS),
        Bug(
            drop_markers_before_their_records,
            (*_BROKEN, "stuck last stable offset", "unseen", "end went back"),
            ("kill",),
            loads=TRANSACTIONS,
        ),
        Bug(keep_the_epoch_at_a_timeout, _BROKEN, ("kill",), loads=TRANSACTIONS),
        Bug(wait_for_former_leaders, ("late markers",), ("pause_for_long",), first_seed=9, loads=TRANSACTIONS),
    )
}
