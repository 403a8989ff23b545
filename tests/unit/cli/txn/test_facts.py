"""Ages of transactions and producers, from what brokers tell."""

from __future__ import annotations

import pytest

from flowstone.cli.txn.facts import NO_TIME, NO_TIMEOUT_MS, ONGOING, DescribedTransaction, PartitionProducer

START_MS = 1_000_000


def described(state: str = ONGOING, timeout_ms: int = 60_000, start_ms: int | None = START_MS) -> DescribedTransaction:
    return DescribedTransaction("tx", 1, 7, 0, state, timeout_ms, start_ms, ())


def test_an_open_transaction_has_an_age_and_the_time_until_it_is_aborted() -> None:
    assert described().open_s(START_MS + 20_000) == 20
    assert described().left_s(START_MS + 20_000) == 40
    assert described().left_s(START_MS + 90_000) == 0
    assert described().open_s(START_MS - 5) == 0  # this machine's clock is behind


@pytest.mark.parametrize("state", ["PrepareCommit", "PrepareAbort"])
def test_a_decided_transaction_is_open_but_is_not_aborted_by_time(state: str) -> None:
    assert described(state).open_s(START_MS + 1000) == 1
    assert described(state).left_s(START_MS + 1000) is None


@pytest.mark.parametrize("one", [described("CompleteCommit"), described("Empty", start_ms=None)])
def test_without_an_open_transaction_there_is_no_age(one: DescribedTransaction) -> None:
    assert (one.is_open, one.open_s(START_MS), one.left_s(START_MS)) == (False, None, None)


def test_a_two_phase_commit_is_never_aborted_by_time() -> None:
    assert described(timeout_ms=NO_TIMEOUT_MS).left_s(START_MS) is None


def test_a_producer_is_silent_since_its_last_batch() -> None:
    assert PartitionProducer(7, 0, -1, 0, START_MS, 5).idle_s(START_MS + 1500) == 1.5
    assert PartitionProducer(7, 0, -1, 0, NO_TIME, None).idle_s(START_MS) is None
