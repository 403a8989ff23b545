"""The simulation's oracle is worth something only if it finds bugs: each of these is planted, and must be found."""

from __future__ import annotations

from typing import Any

import pytest

from flowstone.coordinator.transactions import additions, endings, initialization, transitions
from flowstone.coordinator.transactions.messages import V2, AddPartitionsRequest, EndTransactionRequest, SendMarkers
from flowstone.coordinator.transactions.records import TransactionStored
from flowstone.coordinator.transactions.state import Marking, TransactionEffects, Turn
from flowstone.errors import ErrorCode
from tests.unit.coordinator.transactions.harness import Coordinator
from tests.unit.coordinator.transactions.simulation import World

SEEDS_MAX = 300


def find(*promises: str) -> None:
    """The first seed that breaks something must break one of these promises."""
    broken = next(filter(None, map(failure, range(SEEDS_MAX))), "nothing")
    assert any(f": {promise}" in broken for promise in promises), f"found {broken}"


def failure(seed: int) -> str:
    try:
        World(seed).run()
    except AssertionError as error:
        return f"seed {seed}: {error}"
    return ""


def test_markers_that_are_sent_before_the_decision_is_committed_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Coordinator.take

    def take_tasks_at_once(self: Coordinator, effects: TransactionEffects) -> None:
        tasks, effects.tasks = effects.tasks, []
        for task in tasks:
            self._on_task(task)
        take(self, effects)

    monkeypatch.setattr(Coordinator, "take", take_tasks_at_once)
    find("T1", "T2", "T6")


def test_answers_that_leave_before_their_record_is_committed_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Coordinator.take

    def take_replies_at_once(self: Coordinator, effects: TransactionEffects) -> None:
        replies, effects.replies = effects.replies, []
        for token, response in replies:
            self._on_reply(token, response)
        take(self, effects)

    monkeypatch.setattr(Coordinator, "take", take_replies_at_once)
    find("T1", "T2", "T4", "T5", "T6")


def test_an_epoch_that_is_not_raised_when_a_transaction_is_aborted_by_the_coordinator_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fence_without_epoch(turn: Turn, before: TransactionStored, *, last_epoch: int) -> ErrorCode:
        endings._decide(turn, transitions.prepared_v1(before, is_commit=False, now_ms=turn.now_ms))
        return ErrorCode.NONE

    monkeypatch.setattr("flowstone.coordinator.transactions.scans.fence", fence_without_epoch)
    monkeypatch.setattr(initialization, "fence", fence_without_epoch)
    find("T1", "T2", "T5", "T6")


def test_a_v2_decision_that_keeps_the_epoch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def decide_as_v1(turn: Turn, request: EndTransactionRequest, before: TransactionStored) -> Any:
        return endings.EndTransactionResponse(
            endings._end_v1(turn, request, before), before.producer_id, before.producer_epoch
        )

    monkeypatch.setattr(endings, "_end_v2", decide_as_v1)
    find("T1", "T2", "T5", "T6")


@pytest.mark.parametrize("module", [additions, endings])
def test_fencing_that_is_not_checked_is_found(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    def take_any_epoch(handle: Any) -> Any:
        def handled(turn: Turn, token: Any, request: Any) -> None:
            stored = turn.shard.transactions.get(request.transactional_id)
            if stored is not None and request.client_version < V2:
                request = request._replace(producer_id=stored.producer_id, producer_epoch=stored.producer_epoch)
            handle(turn, token, request)

        return handled

    name = "add_partitions" if module is additions else "end_transaction"
    monkeypatch.setattr(module, name, take_any_epoch(getattr(module, name)))
    find("T1", "T2", "T4", "T5", "T6")


def test_an_end_of_the_epoch_before_that_is_taken_in_any_state_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    end = endings._end_v2

    def take_the_epoch_before(turn: Turn, request: EndTransactionRequest, before: TransactionStored) -> Any:
        if request.producer_epoch == before.producer_epoch - 1 and before.state is endings.TransactionState.ONGOING:
            request = request._replace(producer_epoch=before.producer_epoch)
        return end(turn, request, before)

    monkeypatch.setattr(endings, "_end_v2", take_the_epoch_before)
    find("T4", "T5")


def test_decided_transactions_that_a_recovery_forgets_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endings, "resume", lambda turn, prepared: None)
    find("T6")


def test_open_transactions_that_are_never_aborted_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowstone.coordinator.transactions.scans.fence", lambda *_, **__: ErrorCode.NONE)
    find("T6")


def test_answers_about_the_markers_of_another_task_that_count_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def marking_of_any_task(turn: Turn, task: SendMarkers) -> Marking | None:
        return turn.shard.markings.get(task.transactional_id)

    monkeypatch.setattr(endings, "_marking_of", marking_of_any_task)
    find("T1", "T2", "T6")


def test_a_completion_that_waits_for_one_marker_only_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def complete_at_once(turn: Turn, task: SendMarkers, partitions: Any) -> None:
        if endings._marking_of(turn, task) is not None:
            turn.append(transitions.completed(turn.shard.transactions[task.transactional_id], turn.now_ms))

    monkeypatch.setattr(endings, "markers_written", complete_at_once)
    find("T1", "T2", "T6")


def test_a_partition_that_is_added_while_markers_are_written_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    add = additions._add

    def add_always(turn: Turn, request: AddPartitionsRequest) -> ErrorCode:
        code = add(turn, request)
        return ErrorCode.NONE if code is ErrorCode.CONCURRENT_TRANSACTIONS else code

    monkeypatch.setattr(additions, "_add", add_always)
    find("T1", "T2", "T4", "T6")
