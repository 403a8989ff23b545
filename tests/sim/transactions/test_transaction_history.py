"""The checker of simulated transactions must notice what it is for, and nothing else."""

from __future__ import annotations

import pytest

from flowstone.types import TopicPartition
from tests.faults.checker import Origin, make_value
from tests.sim.history import ClusterHistory

from .history import Consumed, Instance, Transaction, TransactionHistory

A, B, COMPACTED = TopicPartition("accounts", 0), TopicPartition("accounts", 1), TopicPartition("balances", 0)
FIRST, SECOND = Instance("x0", 1), Instance("x0", 2)


@pytest.fixture
def cluster() -> ClusterHistory:
    return ClusterHistory()


@pytest.fixture
def history(cluster: ClusterHistory) -> TransactionHistory:
    return TransactionHistory(cluster, [COMPACTED])


def write(
    history: TransactionHistory, transaction: Transaction, partition: TopicPartition, offset: int
) -> tuple[int, bytes]:
    """Write a record; return it as a reader is given it."""
    origin: Origin = history.send(transaction, partition, b"key")
    history.written(transaction, [origin], offset)
    return offset, make_value(origin)


def commit(history: TransactionHistory, transaction: Transaction) -> None:
    history.commit_asked(transaction, is_last=False)
    history.committed(transaction)


def kinds(cluster: ClusterHistory) -> list[str]:
    return [anomaly.kind for anomaly in cluster.anomalies]


def test_committed_transactions_that_are_whole_are_fine(cluster: ClusterHistory, history: TransactionHistory) -> None:
    transaction = history.begin(FIRST)
    logs = {A: [write(history, transaction, A, 0)], B: [write(history, transaction, B, 7)]}
    transaction.consumed = Consumed("g", 0, 3)
    commit(history, transaction)
    history.see(A, *logs[A][0], "reader")
    history.check(logs, {"g": 3})
    assert kinds(cluster) == []


def test_a_record_must_not_be_seen_before_its_commit_is_asked_for(
    cluster: ClusterHistory, history: TransactionHistory
) -> None:
    transaction = history.begin(FIRST)
    history.see(A, *write(history, transaction, A, 0), "reader")
    assert kinds(cluster) == ["precommitted read"]


def test_a_record_of_a_refused_commit_is_aborted(cluster: ClusterHistory, history: TransactionHistory) -> None:
    transaction = history.begin(FIRST)
    record = write(history, transaction, A, 0)
    history.commit_asked(transaction, is_last=False)
    transaction.refused()
    history.see(A, *record, "reader")
    assert kinds(cluster) == ["aborted read"]


def test_what_an_instance_left_open_is_aborted_once_another_has_taken_over(
    cluster: ClusterHistory, history: TransactionHistory
) -> None:
    record = write(history, history.begin(FIRST), A, 0)
    history.initialized(SECOND)
    assert history.is_fenced(FIRST)
    assert not history.is_fenced(SECOND)
    history.see(A, *record, "reader")
    assert kinds(cluster) == ["aborted read"]


@pytest.mark.parametrize(("is_there", "kind"), [(False, "lost write"), (True, "torn transaction")])
def test_an_acknowledged_commit_is_there_as_a_whole(
    cluster: ClusterHistory, history: TransactionHistory, is_there: bool, kind: str
) -> None:
    transaction = history.begin(FIRST)
    records = [write(history, transaction, A, 0)]
    write(history, transaction, B, 0)
    commit(history, transaction)
    history.check({A: records if is_there else [], B: []}, {})
    assert set(kinds(cluster)) == {kind}


def test_a_commit_that_was_never_answered_is_there_or_not_but_never_in_part(
    cluster: ClusterHistory, history: TransactionHistory
) -> None:
    transaction = history.begin(FIRST)
    records = [write(history, transaction, A, 0)]
    write(history, transaction, B, 0)
    history.commit_asked(transaction, is_last=True)
    history.check({A: [], B: []}, {})
    assert kinds(cluster) == []
    history.check({A: records, B: []}, {})
    assert kinds(cluster) == ["torn transaction"]


def test_a_record_is_seen_at_one_offset(cluster: ClusterHistory, history: TransactionHistory) -> None:
    transaction = history.begin(FIRST)
    offset, value = write(history, transaction, A, 0)
    commit(history, transaction)
    history.see(A, offset, value, "reader")
    history.see(A, offset + 1, value, "reader")
    assert kinds(cluster) == ["duplicate"]


def test_what_was_seen_is_still_there_in_every_replica(cluster: ClusterHistory, history: TransactionHistory) -> None:
    transaction = history.begin(FIRST)
    history.commit_asked(transaction, is_last=True)
    history.see(A, *write(history, transaction, A, 0), "reader")
    history.check_log(A, [], "reader of b1")
    assert kinds(cluster) == ["taken back"]


def test_of_a_compacted_log_the_last_record_of_each_key_stays(
    cluster: ClusterHistory, history: TransactionHistory
) -> None:
    transaction = history.begin(FIRST)
    early, late = (write(history, transaction, COMPACTED, offset) for offset in (0, 5))
    commit(history, transaction)
    history.check_log(COMPACTED, [late], "reader of b1")
    assert kinds(cluster) == []
    history.check_log(COMPACTED, [early], "reader of b2")
    assert kinds(cluster) == ["lost write"]


def test_consumed_offsets_follow_each_other_to_where_the_group_is(
    cluster: ClusterHistory, history: TransactionHistory
) -> None:
    logs = []
    for start, end in ((0, 3), (2, 5), (6, 7)):
        transaction = history.begin(FIRST)
        transaction.consumed = Consumed("g", start, end)
        logs.append(write(history, transaction, A, len(logs)))
        commit(history, transaction)
    history.check({A: logs}, {"g": 9})
    assert kinds(cluster) == ["consumed twice", "skipped record", "torn transaction"]


def test_an_offset_of_an_open_transaction_is_not_visible(cluster: ClusterHistory, history: TransactionHistory) -> None:
    transaction = history.begin(FIRST)
    transaction.consumed = Consumed("g", 0, 3)
    history.see_position("g", 3, transaction.label, 0)
    commit(history, transaction)
    history.see_position("g", 3, transaction.label, history.promised("g"))
    history.see_position("g", 0, "", history.promised("g"))
    assert kinds(cluster) == ["pending offset", "commit regression"]
