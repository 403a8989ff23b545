from __future__ import annotations

import random

import pytest

from flowstone.log.partition.undecided_transactions import DecidedTransaction, UndecidedTransactions


def test_an_open_transaction_holds_the_stable_offset_at_its_first_record() -> None:
    undecided = UndecidedTransactions()
    undecided.begin(1, 10)
    undecided.begin(2, 20)
    assert undecided.first_unstable_offset(100) == 10


def test_a_decided_transaction_is_unstable_until_its_marker_is_below_the_high_watermark() -> None:
    undecided = UndecidedTransactions()
    undecided.begin(1, 10)
    undecided.decide(1, 15, is_commit=True)
    assert [undecided.first_unstable_offset(high_watermark) for high_watermark in (12, 15, 16)] == [10, 10, 16]


def test_the_high_watermark_bounds_the_stable_offset() -> None:
    undecided = UndecidedTransactions()
    undecided.begin(1, 10)
    assert undecided.first_unstable_offset(7) == 7


def test_a_decision_names_the_stable_offset_that_it_leaves() -> None:
    undecided = UndecidedTransactions()
    undecided.begin(1, 10)
    undecided.begin(2, 20)
    first = undecided.decide(1, 30, is_commit=False)
    second = undecided.decide(2, 31, is_commit=True)
    assert first == DecidedTransaction(1, 10, 30, 20, is_commit=False)
    assert second == DecidedTransaction(2, 20, 31, 32, is_commit=True)


def test_more_decided_transactions_than_are_remembered_hold_the_stable_offset_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flowstone.log.partition.undecided_transactions.DECIDED_MAX", 2)
    undecided = UndecidedTransactions()
    for number in range(4):  # begin at 0, 10, 20, 30, are decided at 5, 15, 25, 35
        undecided.begin(number, 10 * number)
        undecided.decide(number, 10 * number + 5, is_commit=True)
    assert undecided.first_unstable_offset(26) == 10, "the later three are one"
    assert undecided.first_unstable_offset(36) == 36


@pytest.mark.parametrize("seed", range(30))
def test_any_history_has_the_stable_offset_of_a_list_of_all_transactions(seed: int) -> None:
    rng = random.Random(seed)
    undecided, history = UndecidedTransactions(), dict[int, list[int | None]]()  # first offset, marker offset
    open_ids, high_watermark = dict[int, int](), 0
    for offset in range(300):
        producer_id = rng.randrange(6)
        if producer_id not in open_ids:
            undecided.begin(producer_id, offset)
            open_ids[producer_id] = offset
            history[offset] = [None]
        elif rng.random() < 0.5:
            undecided.decide(producer_id, offset, is_commit=rng.random() < 0.5)
            history[open_ids.pop(producer_id)] = [offset]
        high_watermark = rng.randint(high_watermark, offset + 1)
        unstable = [first for first, (end,) in history.items() if end is None or end >= high_watermark]
        assert undecided.first_unstable_offset(high_watermark) == min([*unstable, high_watermark])
    assert len(undecided) == len(open_ids)


def test_the_oldest_open_transaction_is_the_one_that_began_first() -> None:
    transactions = UndecidedTransactions()
    assert (transactions.oldest(), len(transactions), transactions.items()) == (None, 0, [])
    transactions.begin(9, 5)
    transactions.begin(3, 7)
    assert (transactions.oldest(), len(transactions), transactions.items()) == ((9, 5), 2, [(9, 5), (3, 7)])
    assert (transactions.first_offset_of(3), transactions.first_offset_of(4)) == (7, None)
    transactions.decide(9, 10, is_commit=False)
    assert transactions.oldest() == (3, 7)


def test_what_an_abort_leaves_in_the_index() -> None:
    transactions = UndecidedTransactions()
    transactions.begin(9, 5)
    transactions.begin(3, 7)
    assert transactions.decide(9, 10, is_commit=False).abort_entry() == (0, 9, 5, 10, 7)
    assert transactions.decide(3, 11, is_commit=False).abort_entry() == (0, 3, 7, 11, 12)
