"""Transactions while coordinators and leaders fail: a cluster of three brokers, asked by raw requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from flowstone.embedded.cluster import Cluster
from flowstone.errors import ErrorCode
from flowstone.wire import messages as m
from tests.support.transactions import BUSY, TransactionClient, eventually, markers
from tests.support.wire_client import Client, Closed
from tests.unit.broker.handlers.test_read_committed import committed
from tests.unit.transactions.states import commit_offset, produce_to

TOPIC, STATE, GROUP = "t", "__transaction_state", "g"
NONE = ErrorCode.NONE
V1, V2 = 4, 5
PRODUCE = {V1: 11, V2: 12}
SETTINGS = {
    "transaction.state.log.num.partitions": 1,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 3,
}
# Of a leader whose lease has expired, as on a busy machine, or that is followed by too few replicas for a moment.
PASSING = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
AWAY = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, *BUSY)


class Brokers:
    """A cluster whose partition 0 of a topic has three replicas."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._open: list[Client] = []

    def client(self, node_id: int) -> Client:
        host, _, port = self.cluster.brokers[node_id].bootstrap.rpartition(":")
        self._open.append(Client((host, int(port))))
        return self._open[-1]

    def leader(self, topic: str = TOPIC) -> Client:
        return self.client(self.cluster.wait_for_leader(topic))

    def begin(self, transactional_id: str = "tx") -> TransactionClient:
        producer = TransactionClient(self.client(1), transactional_id)
        eventually(lambda: producer.find_coordinator().error_code == NONE)
        self.cluster.wait_in_sync(STATE)
        producer.client = self.leader(STATE)
        producer.begin()
        return producer

    def write(
        self,
        producer: TransactionClient,
        value: bytes,
        sequence: int = 0,
        version: int = V2,
        leader: Client | None = None,
    ) -> int:
        """Write a record to the partition, whose leader need not be the coordinator; return its offset."""
        writer = TransactionClient(leader or self.leader(), producer.transactional_id)
        writer.producer_id, writer.producer_epoch = producer.pair
        answers = []

        def is_final() -> bool:
            if version == V1 and producer.add((TOPIC, [0])) != [NONE]:
                return False
            answers.append(produce_to(writer, PRODUCE[version], value, sequence))
            return answers[-1].error_code not in PASSING

        eventually(is_final)
        assert answers[-1].error_code == NONE
        return int(answers[-1].base_offset)

    def end(self, producer: TransactionClient, *, commit: bool = True, version: int = V2) -> None:
        answer = self.ask_to_end(producer, commit=commit, version=version)
        producer.wait_for_state("CompleteCommit" if commit else "CompleteAbort")
        if version == V2:
            producer.producer_id, producer.producer_epoch = answer.producer_id, answer.producer_epoch

    def ask_to_end(self, producer: TransactionClient, *, commit: bool, version: int) -> Any:
        """Ask as clients do, again where a busy machine has let a lease expire; return the answer."""
        answers = []

        def is_final() -> bool:
            answers.append(producer.end(commit=commit, version=version))
            return answers[-1].error_code not in AWAY

        eventually(is_final)
        assert answers[-1].error_code == NONE
        return answers[-1]

    def fail_over(self, topic: str) -> int:
        """Kill the leader of the topic's partition; return its node id once there is another one."""
        former = self.cluster.wait_for_leader(topic)
        self.cluster.wait_in_sync(topic)
        self.cluster.kill(former)
        self.cluster.wait_for_leader(topic, other_than=former)
        return former

    def close(self) -> None:
        for client in self._open:
            client.close()


@contextmanager
def started(**settings: int) -> Iterator[Brokers]:
    with Cluster(settings=SETTINGS | settings) as cluster:
        cluster.create_topic(TOPIC, partitions=1, replication_factor=3)
        brokers = Brokers(cluster)
        try:
            yield brokers
        finally:
            brokers.close()


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    with started() as running:
        yield running


def until_answered(ask: Callable[[], int]) -> int:
    """Ask a coordinator that is taking over again, as clients do, and return what it says in the end."""
    told: list[int] = []

    def is_final() -> bool:
        told.append(ask())
        return told[-1] not in AWAY

    eventually(is_final)
    return told[-1]


def test_every_replica_shows_read_committed_readers_the_same(brokers: Brokers) -> None:
    first, second, third = (brokers.begin(name) for name in ("first", "second", "third"))
    brokers.write(first, b"c1", version=V1)
    brokers.write(second, b"a1")
    brokers.write(first, b"c2", 1, version=V1)
    brokers.end(second, commit=False)
    brokers.end(first, version=V1)
    brokers.write(second, b"c3")
    brokers.write(third, b"open")
    brokers.end(second)
    brokers.write(first, b"a2", 2, version=V1)
    brokers.end(first, commit=False, version=V1)

    def seen_alike(values: list[bytes], stable_offset: int, *aborted: tuple[int, int]) -> None:
        for node_id in (1, 2, 3):
            reader = brokers.client(node_id)

            def is_there(reader: Client = reader) -> bool:
                answer = reader.fetch(TOPIC, 0, isolation_level=1)
                return answer.error_code == NONE and committed(reader, TOPIC) == values

            eventually(is_there)
            answer = reader.fetch(TOPIC, 0, isolation_level=1)
            assert answer.last_stable_offset == stable_offset
            told = [(each.producer_id, each.first_offset) for each in answer.aborted_transactions]
            assert told == [*aborted]

    is_open = [b"c1", b"c2", b"c3"], 6, (second.producer_id, 1)
    seen_alike(*is_open)
    former = brokers.fail_over(TOPIC)
    brokers.cluster.restart(former)
    brokers.cluster.wait_in_sync(TOPIC)
    seen_alike(*is_open)
    third.client = brokers.leader(STATE)
    assert until_answered(lambda: int(third.end(commit=True).error_code)) == NONE
    third.wait_for_state("CompleteCommit")
    seen_alike([b"c1", b"c2", b"c3", b"open"], 11, (second.producer_id, 1), (first.producer_id, 8))


def test_only_the_leader_is_asked_where_the_stable_part_ends(brokers: Brokers) -> None:
    producer = brokers.begin()
    brokers.write(producer, b"open")
    codes = {}
    for node_id in (1, 2, 3):
        partition = m.ListOffsetsRequestPartition(partition_index=0, timestamp=-1)
        wanted = m.ListOffsetsRequestTopic(name=TOPIC, partitions=[partition])
        request = m.ListOffsetsRequest(replica_id=-1, isolation_level=1, topics=[wanted])
        for version in range(2, 12):
            answer = brokers.client(node_id).ask(version, request).topics[0].partitions[0]
            codes[node_id, version] = ErrorCode(answer.error_code), answer.offset
    leader = brokers.cluster.leader(TOPIC)
    assert {codes[leader, version] for version in range(2, 12)} == {(NONE, 0)}
    others = {code for (node_id, _), code in codes.items() if node_id != leader}
    assert others == {(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)}


@pytest.mark.parametrize("version", [V1, V2])
@pytest.mark.parametrize("commit", [True, False])
def test_an_end_whose_answer_is_lost_with_its_coordinator_is_repeated(
    brokers: Brokers, version: int, commit: bool
) -> None:
    """Redpanda, found by Jepsen: INVALID_TXN_STATE for a transaction that was committed."""
    producer = brokers.begin()
    brokers.write(producer, b"v", version=version)
    answer = brokers.ask_to_end(producer, commit=commit, version=version)
    brokers.fail_over(STATE)
    producer.client = brokers.leader(STATE)
    assert until_answered(lambda: int(producer.end(commit=commit, version=version).error_code)) == NONE
    again = producer.end(commit=commit, version=version)
    assert (again.producer_id, again.producer_epoch) == (answer.producer_id, answer.producer_epoch)
    assert producer.end(commit=not commit, version=version).error_code == ErrorCode.INVALID_TXN_STATE
    eventually(lambda: len(markers(brokers.leader(), TOPIC)) >= 1)
    assert committed(brokers.leader(), TOPIC) == [b"v"] * commit


def test_a_batch_that_is_sent_again_to_the_next_leader_is_there_once(brokers: Brokers) -> None:
    """Redpanda 3003 and 3039, found by Jepsen: duplicates when a leader changes."""
    producer = brokers.begin()
    first = brokers.write(producer, b"v")
    brokers.fail_over(TOPIC)
    leader = brokers.leader()
    assert brokers.write(producer, b"v", leader=leader) == first
    assert brokers.write(producer, b"w", 1, leader=leader) == first + 1
    producer.client = brokers.leader(STATE)
    assert until_answered(lambda: int(producer.end(commit=True).error_code)) in (NONE, ErrorCode.INVALID_TXN_STATE)
    producer.wait_for_state("CompleteCommit")
    assert committed(leader, TOPIC) == [b"v", b"w"]


def test_a_coordinator_that_moves_twice_completes_each_transaction_once(brokers: Brokers) -> None:
    """KAFKA-16352 and 10080: the completion of an earlier coordinator is applied, or two are."""
    producer = brokers.begin()
    brokers.write(producer, b"first")
    first = brokers.fail_over(STATE)
    producer.client = brokers.leader(STATE)
    eventually(lambda: producer.describe().transaction_state == "Ongoing")
    brokers.end(producer)
    brokers.write(producer, b"second")
    brokers.cluster.restart(first)
    brokers.cluster.wait_in_sync(TOPIC)
    brokers.fail_over(STATE)
    producer.client = brokers.leader(STATE)
    eventually(lambda: producer.describe().transaction_state == "Ongoing")
    brokers.end(producer)
    leader = brokers.leader()
    assert committed(leader, TOPIC) == [b"first", b"second"]
    epochs = [(epoch, is_commit) for _, epoch, is_commit in markers(leader, TOPIC)]
    assert epochs == [(1, True), (2, True)]


def test_initializations_without_enough_replicas_raise_the_epoch_once(brokers: Brokers) -> None:
    """KAFKA-9666 and 19367: each try raises the epoch, until there is none left."""
    producer = brokers.begin()
    before = producer.producer_epoch
    coordinator = brokers.cluster.leader(STATE)
    others = [node_id for node_id in (1, 2, 3) if node_id != coordinator]
    for node_id in others:
        brokers.cluster.kill(node_id)
    eventually(lambda: brokers.cluster.in_sync(STATE) == {coordinator})
    told = []
    for _ in range(20):
        try:
            told.append(producer.init().error_code)
        except (Closed, TimeoutError):  # a request that the coordinator took before
            producer.client = brokers.client(coordinator)
    assert told
    assert NONE not in told
    assert set(told) <= set(AWAY)
    for node_id in others:
        brokers.cluster.restart(node_id)
    brokers.cluster.wait_in_sync(STATE)
    producer.client = brokers.leader(STATE)
    producer.begin()
    assert before < producer.producer_epoch <= before + 2


def test_offsets_of_a_transaction_stay_pending_when_the_group_coordinator_moves(brokers: Brokers) -> None:
    producer = brokers.begin()
    request = m.FindCoordinatorRequest(key=GROUP)
    eventually(lambda: producer.client.ask(0, request).error_code == NONE)
    offsets = "__consumer_offsets"
    brokers.cluster.wait_in_sync(offsets)
    assert until_answered(lambda: producer.add_offsets(GROUP)) == NONE

    def commit(client: Client) -> int:
        at_group = TransactionClient(client, producer.transactional_id)
        at_group.producer_id, at_group.producer_epoch = producer.pair
        return commit_offset(at_group, 5, GROUP, 7)

    def stored(client: Client) -> tuple[int, int]:
        topics = [m.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])]
        answer = client.ask(7, m.OffsetFetchRequest(group_id=GROUP, topics=topics, require_stable=True))
        if answer.error_code != NONE:
            return answer.error_code, -1
        (found,) = answer.topics[0].partitions
        return found.error_code, found.committed_offset

    assert until_answered(lambda: commit(brokers.leader(offsets))) == NONE
    brokers.fail_over(offsets)
    host = brokers.leader(offsets)
    assert until_answered(lambda: stored(host)[0]) == ErrorCode.UNSTABLE_OFFSET_COMMIT
    producer.client = brokers.leader(STATE)
    assert until_answered(lambda: int(producer.end(commit=True).error_code)) == NONE
    eventually(lambda: stored(host) == (NONE, 7))
