"""The checker of transactions can fail: each kind of anomaly is found, and nothing else is called one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from flowstone.types import TopicPartition
from flowstone.wire.end_markers import end_marker
from flowstone.wire.record_batch import Record, build_batch

from .replicas import committed_records
from .transfers import ACCOUNTS, Claims, Leg, View, transfer

ORDERS = TopicPartition("orders", 0)
ACCOUNT = TopicPartition("accounts", 0)


def legs_of(transaction: str, *offsets: int) -> list[Leg]:
    return transfer(transaction, [(ORDERS, offset) for offset in offsets])


def view_of(legs: Sequence[Leg]) -> View:
    view = View("reader")
    for offset, leg in enumerate(legs):
        view.take(ACCOUNT, offset, leg.encode(), now_s=float(offset))
    return view


def kinds(legs: Sequence[Leg], *, committed: Sequence[str] = (), aborted: Sequence[str] = (), end: int) -> list[str]:
    claims = Claims()
    claims.committed.update(committed)
    claims.aborted.update(aborted)
    return [each.kind for each in view_of(legs).check(claims, {ORDERS: end})]


def test_a_leg_is_read_back_and_no_other_bytes_are_one() -> None:
    (debit, credit) = legs_of("t", 7)
    assert Leg.decode(debit.encode()) == debit
    assert debit.amount + credit.amount == 0
    assert debit.account != credit.account
    assert {debit.account, credit.account} <= set(range(ACCOUNTS))
    assert Leg.decode(b"order") is None
    assert Leg.decode(debit.encode() + b"|1") is None


def test_whole_transactions_are_good_whatever_their_producers_heard() -> None:
    legs = [*legs_of("a", 0, 1), *legs_of("b", 2)]
    assert kinds(legs, committed=["a", "b"], end=3) == []
    assert kinds(legs, committed=["a"], aborted=["c"], end=3) == []


def test_interleaved_transactions_are_good() -> None:
    a, b = legs_of("a", 0), legs_of("b", 1)
    assert kinds([a[0], b[0], b[1], a[1]], committed=["a", "b"], end=2) == []


@pytest.mark.parametrize(
    ("legs", "committed", "aborted", "end", "expected"),
    [
        (legs_of("a", 0), ["a", "b"], [], 1, ["lost transaction"]),
        (legs_of("a", 0), [], ["a"], 1, ["aborted read"]),
        (legs_of("a", 0)[:1], ["a"], [], 1, ["torn transaction", "changed sum"]),
        (legs_of("a", 0) * 2, ["a"], [], 1, ["duplicate", "duplicate"]),
        (legs_of("a", 0) + legs_of("b", 0), ["a", "b"], [], 1, ["order handled twice"] * 2),
        (legs_of("a", 0), ["a"], [], 2, ["order lost"]),
        (legs_of("a", 0), ["a"], [], 0, ["offsets not committed"]),
    ],
)
def test_each_anomaly_is_found(
    legs: list[Leg], committed: list[str], aborted: list[str], end: int, expected: list[str]
) -> None:
    assert kinds(legs, committed=committed, aborted=aborted, end=end) == expected


def test_bytes_that_are_no_leg_and_offsets_that_come_again_are_found() -> None:
    view = View("reader")
    view.take(ACCOUNT, 0, b"?", now_s=0.0)
    view.take(ACCOUNT, 0, legs_of("a", 0)[0].encode(), now_s=0.0)
    assert [each.kind for each in view.anomalies] == ["phantom", "read twice"]


def test_a_reader_waits_for_the_rest_of_what_it_saw_long_ago_and_its_sum_does_not_change() -> None:
    a, b = legs_of("a", 0), legs_of("b", 1)
    view = view_of([a[0], b[0], b[1]])
    assert view.incomplete(before_s=0.0) == {}
    assert set(view.incomplete(before_s=1.0)) == {"a"}
    assert view.total_of_whole() == 0


def test_what_a_reader_saw_and_is_not_there_at_the_end_is_found() -> None:
    a, b = legs_of("a", 0), legs_of("b", 1)
    assert view_of(a).check_against(view_of(a + b)) == []
    assert {each.kind for each in view_of(a + b).check_against(view_of(a))} == {"taken back"}
    assert {each.kind for each in view_of(a).check_against(view_of(b))} == {"taken back"}


def stored(legs: Sequence[Leg], first_offset: int, producer_id: int) -> bytes:
    records = [Record(offset, 0, None, leg.encode()) for offset, leg in enumerate(legs, first_offset)]
    numbered = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": first_offset}
    return build_batch(records, base_offset=first_offset, is_transactional=True, **numbered)


def test_a_stored_log_is_read_by_its_markers() -> None:
    a, b, c = legs_of("a", 0), legs_of("b", 1), legs_of("c", 2)
    commit, abort = (end_marker(number, 0, 0, is_commit, 0) for number, is_commit in ((1, True), (2, False)))
    batches = [stored(a, 0, 1), stored(b, 2, 2), commit, abort, stored(c, 6, 1)]
    committed, left_open = committed_records(batches)
    assert committed == {offset: leg.encode() for offset, leg in enumerate(a)}
    assert left_open == [6]
    assert [each.kind for each in view_of(a).check_stored(ACCOUNT, committed, left_open)] == ["hanging transaction"]
    wrong = view_of(a + b).check_stored(ACCOUNT, committed, [])
    assert [each.kind for each in wrong] == ["wrong isolation"] * 2
