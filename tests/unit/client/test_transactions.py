"""Transactions that one client begins and ends, and in which producers of other clients write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from flowstone.client import Cluster, DeliveryFailed, Producer, Refused
from flowstone.client.groups import CommittedOffset
from flowstone.client.offsets import LATEST
from flowstone.client.transactions import Transaction, Written
from flowstone.embedded import Broker
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from tests.unit.client.batches import batch_of

TIMEOUT_MS = 60_000
_ids = count()


@pytest.fixture
def transactional_id() -> str:
    return f"sink-{next(_ids)}"


@pytest.fixture
def other(broker: Broker) -> Iterator[Cluster]:
    """A client in place of another process."""
    with Cluster(broker.bootstrap, deadline_s=10) as cluster:
        yield cluster


def begun(cluster: Cluster, transactional_id: str) -> Transaction:
    return cluster.begin_transaction(transactional_id, TIMEOUT_MS)


def write(cluster: Cluster, transaction: Transaction, partition: TopicPartition, *values: bytes) -> None:
    """Write as another process does, which was told only the identity."""
    with Producer(cluster, transaction=cluster.transaction(transaction.identity)) as producer:
        for value in values:
            producer.send(partition, batch_of(value), 1)


def visible(cluster: Cluster, partition: TopicPartition) -> int:
    """The offset up to which a read_committed reader may read."""
    return cluster.list_offsets({partition: LATEST}, read_committed=True)[partition].offset


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
    raise AssertionError("it did not happen")


def aborted_first_offsets(cluster: Cluster, partition: TopicPartition, end: int) -> set[int]:
    return {
        each.first_offset
        for fetched in cluster.fetch(partition, 0, end, read_committed=True)
        for each in fetched.aborted
    }


def test_what_two_processes_write_becomes_visible_when_a_third_commits(
    cluster: Cluster, other: Cluster, topic: str, transactional_id: str
) -> None:
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    transaction = begun(cluster, transactional_id)
    write(cluster, transaction, first, b"a", b"b")
    write(other, transaction, second, b"c")
    assert (visible(cluster, first), visible(cluster, second)) == (0, 0)
    assert transaction.written([first, second]) == {first: Written(1, 0), second: Written(0, 0)}
    transaction.commit()
    wait_until(lambda: (visible(cluster, first), visible(cluster, second)) == (3, 2))  # a marker each
    assert not aborted_first_offsets(cluster, first, 3)
    assert transaction.written([first]) == {}


def test_an_abort_drops_everything_and_may_be_repeated(cluster: Cluster, topic: str, transactional_id: str) -> None:
    partition = TopicPartition(topic, 0)
    transaction = begun(cluster, transactional_id)
    write(cluster, transaction, partition, b"a")
    transaction.abort()
    transaction.abort()
    wait_until(lambda: visible(cluster, partition) == 2)
    assert aborted_first_offsets(cluster, partition, 2) == {0}


def test_a_transaction_without_records_can_be_aborted(cluster: Cluster, transactional_id: str) -> None:
    begun(cluster, transactional_id).abort()


def test_beginning_again_aborts_and_refuses_the_one_before(
    cluster: Cluster, other: Cluster, topic: str, transactional_id: str
) -> None:
    partition = TopicPartition(topic, 0)
    old = begun(cluster, transactional_id)
    write(cluster, old, partition, b"old")
    new = begun(other, transactional_id)
    with pytest.raises(Refused, match="another producer uses this transactional id now") as refused:
        old.commit()
    assert refused.value.code in (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)
    with pytest.raises(Refused, match="another producer"):
        write(cluster, old, TopicPartition(topic, 1), b"late")
    old.abort()
    write(other, new, partition, b"new")
    new.commit()
    wait_until(lambda: visible(cluster, partition) == 4)
    assert aborted_first_offsets(cluster, partition, 4) == {0}


def deliver(producer: Producer, partition: TopicPartition, value: bytes) -> None:
    producer.send(partition, batch_of(value), 1)
    producer.flush()


def test_a_late_batch_to_a_partition_that_was_added_is_refused(
    cluster: Cluster, other: Cluster, topic: str, transactional_id: str
) -> None:
    partition = TopicPartition(topic, 0)
    old = begun(cluster, transactional_id)
    producer = Producer(cluster, transaction=old)
    producer.send(partition, batch_of(b"in time"), 1)
    producer.flush()
    begun(other, transactional_id)
    with pytest.raises(DeliveryFailed, match="another producer"):
        deliver(producer, partition, b"late")


def test_offsets_are_committed_with_the_transaction_and_read_when_it_has_ended(
    cluster: Cluster, topic: str, transactional_id: str
) -> None:
    partition = TopicPartition(topic, 0)
    group = f"group-{transactional_id}"
    dropped = begun(cluster, transactional_id)
    dropped.commit_offsets(group, {partition: CommittedOffset(1, "dropped")})
    dropped.abort()
    assert cluster.stable_offsets(group) == {}
    kept = begun(cluster, transactional_id)
    kept.commit_offsets(group, {partition: CommittedOffset(7, "kept")})
    kept.commit()
    assert cluster.stable_offsets(group) == {partition: CommittedOffset(7, "kept")}


def test_a_partition_that_does_not_exist_is_named(cluster: Cluster, topic: str, transactional_id: str) -> None:
    transaction = begun(cluster, transactional_id)
    missing = TopicPartition(topic, 99)
    with pytest.raises(Exception, match=f"{topic}-99"):
        transaction.add_partitions([TopicPartition(topic, 0), missing])


def test_a_timeout_longer_than_the_brokers_allow_is_refused(cluster: Cluster, transactional_id: str) -> None:
    with pytest.raises(Refused, match=r"longer than the brokers allow \(transaction.max.timeout.ms\)"):
        cluster.begin_transaction(transactional_id, 10**9)


def test_a_producer_that_numbers_nothing_has_no_transaction(cluster: Cluster, transactional_id: str) -> None:
    with pytest.raises(ValueError, match="is idempotent"):
        Producer(cluster, transaction=begun(cluster, transactional_id), idempotent=False)
