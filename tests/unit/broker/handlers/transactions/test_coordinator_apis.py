"""The transaction APIs over the wire, answer by answer: errors by state, epoch and version."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowstone.broker.coordinators import waiting_additions
from flowstone.broker.loop.time_slices import BATCH_ITEMS
from flowstone.coordinator.transactions.config import PARTITIONS_PER_TRANSACTION_MAX
from flowstone.coordinator.transactions.shard import TransactionShard
from flowstone.errors import ErrorCode
from flowstone.wire import messages as m
from tests.support.running_app import RunningApp
from tests.support.transactions import TIMEOUT_MS, TransactionClient, markers
from tests.support.wire_client import Client, frame

TOPIC, OTHER = "t", "u"
NONE, ITS = ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE
FENCED, OLD_FENCED = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
COMMIT, ABORT = True, False
NEVER = str(2**63 - 1)  # no flush after any number of records


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    data = tmp_path_factory.mktemp("broker")
    with RunningApp(str(data), transaction_state_log_num_partitions="2", offsets_topic_num_partitions="2") as running:
        with running.client() as client:
            assert client.create_topic(TOPIC, 2) == NONE
            assert client.create_topic(OTHER) == NONE
        yield running


@pytest.fixture
def client(app: RunningApp) -> Iterator[Client]:
    with app.client() as connected:
        yield connected


@pytest.fixture
def producer(client: Client, request: pytest.FixtureRequest) -> TransactionClient:
    """The producer of a transactional id of the test's own, without a transaction."""
    made = TransactionClient(client, request.node.name)
    made.begin()
    return made


def end_and_wait(producer: TransactionClient, *, commit: bool, version: int = 5) -> Any:
    answer = producer.end(commit=commit, version=version)
    assert answer.error_code == NONE
    producer.wait_for_state("CompleteCommit" if commit else "CompleteAbort")
    return answer


# FindCoordinator


@pytest.mark.parametrize("version", range(1, 7))
def test_every_version_finds_the_coordinator_of_a_transactional_id(client: Client, version: int) -> None:
    if version < 4:
        found = client.ask(version, m.FindCoordinatorRequest(key_type=1, key="tx"))
    else:
        (found,) = client.ask(version, m.FindCoordinatorRequest(key_type=1, coordinator_keys=["tx"])).coordinators
    assert (found.error_code, found.node_id) == (NONE, 1)


def test_the_state_of_transactions_is_an_internal_topic_compacted_and_uncompressed(
    app: RunningApp, producer: TransactionClient
) -> None:
    topic = app.app.services.metadata.image.topics["__transaction_state"]
    assert len(topic.partitions) == 2
    assert {name: topic.configs[name] for name in ("cleanup.policy", "compression.type", "min.insync.replicas")} == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "1",
    }


# InitProducerId


@pytest.mark.parametrize("version", range(6))
def test_each_initialization_raises_the_epoch(producer: TransactionClient, version: int) -> None:
    answer = producer.init(version)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (NONE, producer.producer_id, 1)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"producer_id": 5}, ErrorCode.INVALID_REQUEST),
        ({"producer_epoch": 5}, ErrorCode.INVALID_REQUEST),
        ({"timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"timeout_ms": 900_001}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    ],
)
def test_an_invalid_initialization_is_refused(producer: TransactionClient, fields: Any, code: ErrorCode) -> None:
    assert producer.init(**fields).error_code == code


def test_an_empty_transactional_id_is_refused(client: Client) -> None:
    request = m.InitProducerIdRequest(transactional_id="", transaction_timeout_ms=TIMEOUT_MS)
    assert client.ask(5, request).error_code == ErrorCode.INVALID_REQUEST


def test_a_lost_answer_to_an_initialization_is_repeated(producer: TransactionClient) -> None:
    given = {"producer_id": producer.producer_id, "producer_epoch": 0}
    first, again = producer.init(**given), producer.init(**given)
    assert (first.producer_epoch, again.producer_epoch) == (1, 1)
    assert (first.error_code, again.error_code) == (NONE, NONE)


@pytest.mark.parametrize(("version", "code"), [(3, OLD_FENCED), (4, FENCED), (5, FENCED)])
def test_a_fenced_producer_is_told_so_in_the_terms_of_its_version(
    producer: TransactionClient, version: int, code: ErrorCode
) -> None:
    producer.init()
    producer.init()
    assert producer.init(version, producer_id=producer.producer_id, producer_epoch=0).error_code == code


def test_initializing_during_a_transaction_aborts_it(producer: TransactionClient) -> None:
    assert producer.add((TOPIC, [0])) == [NONE]
    assert producer.init().error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    producer.wait_for_state("CompleteAbort")
    old = producer.producer_epoch
    producer.begin()
    assert producer.producer_epoch > old


# AddPartitionsToTxn and AddOffsetsToTxn


@pytest.mark.parametrize("version", range(4))
def test_partitions_become_part_of_the_transaction(producer: TransactionClient, version: int) -> None:
    assert producer.add((TOPIC, [0, 1]), (OTHER, [0]), version=version) == [NONE, NONE, NONE]
    described = producer.describe()
    assert described.transaction_state == "Ongoing"
    assert {each.topic: list(each.partitions) for each in described.topics} == {TOPIC: [0, 1], OTHER: [0]}


def test_more_partitions_than_a_transaction_may_have_are_refused_without_being_looked_for(
    producer: TransactionClient, client: Client
) -> None:
    topic = m.AddPartitionsToTxnRequestTopic(name=TOPIC, partitions=list(range(PARTITIONS_PER_TRANSACTION_MAX + 1)))
    transaction = m.AddPartitionsToTxnRequestTransaction(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        topics=[topic],
    )
    (result,) = client.ask(5, m.AddPartitionsToTxnRequest(transactions=[transaction])).results_by_transaction
    (answered,) = result.topic_results
    assert {each.partition_error_code for each in answered.results_by_partition} == {ErrorCode.POLICY_VIOLATION}
    assert len(answered.results_by_partition) == len(topic.partitions)
    assert producer.describe().transaction_state == "Empty"


def test_the_next_transaction_begins_as_soon_as_the_last_is_complete(
    producer: TransactionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EndTxn is answered before the markers are written: a client that goes on at once need not ask twice."""
    monkeypatch.setattr(waiting_additions, "WAIT_MS_MAX", 10_000)  # for a disk that is busy
    for number in range(50):
        assert producer.add((TOPIC, [0, 1]), (OTHER, [0])) == [NONE, NONE, NONE], f"transaction {number}"
        assert producer.end(commit=COMMIT, version=4).error_code == NONE
        assert producer.add_offsets("g") == NONE, f"transaction {number}"
        assert producer.end(commit=ABORT, version=4).error_code == NONE


def test_the_coordinator_is_notified_once_of_markers_that_are_committed_as_they_are_written(
    client: Client, producer: TransactionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without flushes: each notification is a call of the state machine."""
    notified: list[int] = []
    markers_written = TransactionShard.markers_written

    def count(self: TransactionShard, now_ms: int, task: Any, partitions: list[Any]) -> Any:
        notified.append(len(partitions))
        return markers_written(self, now_ms, task, partitions)

    assert client.create_topic("unflushed", 3, flush_messages=NEVER) == NONE
    assert producer.add(("unflushed", [0, 1, 2])) == [NONE] * 3
    monkeypatch.setattr(TransactionShard, "markers_written", count)
    end_and_wait(producer, commit=COMMIT)
    assert notified == [3]


def test_one_partition_that_does_not_exist_keeps_the_others_out(producer: TransactionClient) -> None:
    unknown, skipped = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
    assert producer.add((TOPIC, [0, 9]), ("nowhere", [0])) == [skipped, unknown, unknown]
    assert producer.describe().transaction_state == "Empty"


def test_a_request_that_is_handled_in_time_slices_gets_the_same_errors(producer: TransactionClient) -> None:
    unknown, skipped = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
    many = [*range(9, 9 + BATCH_ITEMS)]
    assert producer.add((TOPIC, [0, *many])) == [skipped, *[unknown] * len(many)]
    assert producer.add((TOPIC, [0, 1] * BATCH_ITEMS)) == [NONE, NONE] * BATCH_ITEMS
    assert {each.topic: list(each.partitions) for each in producer.describe().topics} == {TOPIC: [0, 1]}


@pytest.mark.parametrize("name", ["__transaction_state", "__consumer_offsets"])
def test_a_client_cannot_add_an_internal_topic(producer: TransactionClient, name: str) -> None:
    assert producer.add((name, [0])) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]


@pytest.mark.parametrize(("name", "count"), [(TOPIC, 1), ("l" * 230, 80)], ids=["small", "large"])
def test_requests_that_are_sent_without_waiting_are_handled_in_their_order(
    producer: TransactionClient, name: str, count: int
) -> None:
    producer.client.create_topic(name, 2)
    topics = [m.AddPartitionsToTxnRequestTopic(name=name, partitions=[1])] * count
    add = m.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=producer.transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=topics,
    )
    end = m.EndTxnRequest(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        committed=COMMIT,
    )
    producer.client.send(frame(3, add, 1_000) + frame(3, end, 1_001))
    answers = [producer.client.receive() for _ in range(2)]
    assert int.from_bytes(answers[1][-3:-1]) == NONE, ErrorCode(int.from_bytes(answers[1][-3:-1]))
    producer.wait_for_state("CompleteCommit")
    assert (*producer.pair, COMMIT) in markers(producer.client, name, 1)


@pytest.mark.parametrize(("version", "code"), [(0, OLD_FENCED), (1, OLD_FENCED), (2, FENCED), (3, FENCED)])
def test_a_fenced_producer_cannot_add_partitions(producer: TransactionClient, version: int, code: ErrorCode) -> None:
    producer.init()
    assert producer.add((TOPIC, [0]), version=version) == [code]


@pytest.mark.parametrize(("version", "code"), [(1, OLD_FENCED), (2, FENCED), (4, FENCED)])
def test_a_fenced_producer_cannot_add_offsets(producer: TransactionClient, version: int, code: ErrorCode) -> None:
    producer.init()
    assert producer.add_offsets("g", version) == code


def test_another_producer_id_is_no_producer_of_the_transactional_id(producer: TransactionClient) -> None:
    producer.producer_id += 1_000_000
    assert producer.add((TOPIC, [0])) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]


@pytest.mark.parametrize("version", range(5))
def test_the_partition_of_the_groups_offsets_becomes_part_of_the_transaction(
    producer: TransactionClient, version: int
) -> None:
    assert producer.add_offsets("g", version) == NONE
    (topic,) = producer.describe().topics
    assert topic.topic == "__consumer_offsets"


@pytest.mark.parametrize("version", [4, 5])
def test_a_broker_verifies_partitions_of_the_transaction_alone(producer: TransactionClient, version: int) -> None:
    producer.add((TOPIC, [0]))
    codes = producer.add_as_broker((TOPIC, [0, 1]), verify_only=True, version=version)
    assert codes == [NONE, ErrorCode.TRANSACTION_ABORTABLE]
    (topic,) = producer.describe().topics
    assert list(topic.partitions) == [0]


def test_a_broker_adds_partitions_for_a_producer_that_writes(producer: TransactionClient) -> None:
    assert producer.add_as_broker((TOPIC, [0]), verify_only=False) == [NONE]
    assert producer.describe().transaction_state == "Ongoing"


# EndTxn


@pytest.mark.parametrize("version", range(5))
def test_the_first_protocol_keeps_the_epoch(producer: TransactionClient, version: int) -> None:
    producer.add((TOPIC, [0]))
    end_and_wait(producer, commit=COMMIT, version=version)
    described = producer.describe()
    assert (described.producer_id, described.producer_epoch) == producer.pair
    assert (*producer.pair, True) in markers(producer.client, TOPIC)


@pytest.mark.parametrize(
    ("commit", "again", "code"), [(COMMIT, COMMIT, NONE), (COMMIT, ABORT, ITS), (ABORT, COMMIT, ITS)]
)
def test_a_repeated_end_of_the_first_protocol_must_have_the_same_outcome(
    producer: TransactionClient, commit: bool, again: bool, code: ErrorCode
) -> None:
    producer.add((TOPIC, [0]))
    end_and_wait(producer, commit=commit, version=4)
    assert producer.end(commit=again, version=4).error_code == code


@pytest.mark.parametrize(("commit", "code"), [(COMMIT, ITS), (ABORT, ITS)])
def test_the_first_protocol_cannot_end_a_transaction_that_was_not_begun(
    producer: TransactionClient, commit: bool, code: ErrorCode
) -> None:
    assert producer.end(commit=commit, version=4).error_code == code


def test_the_second_protocol_answers_with_the_epoch_of_the_next_transaction(producer: TransactionClient) -> None:
    producer.add_as_broker((TOPIC, [0]), verify_only=False)
    answer = end_and_wait(producer, commit=COMMIT)
    assert (answer.producer_id, answer.producer_epoch) == (producer.producer_id, 1)
    assert (producer.producer_id, 1, True) in markers(producer.client, TOPIC)


@pytest.mark.parametrize(("again", "code"), [(COMMIT, NONE), (ABORT, ITS)])
def test_a_repeated_end_of_the_second_protocol_comes_with_the_epoch_before(
    producer: TransactionClient, again: bool, code: ErrorCode
) -> None:
    producer.add_as_broker((TOPIC, [0]), verify_only=False)
    end_and_wait(producer, commit=COMMIT)
    answer = producer.end(commit=again)
    assert answer.error_code == code
    assert answer.producer_epoch == (1 if code is NONE else -1)


@pytest.mark.parametrize("is_complete", [False, True])
@pytest.mark.parametrize(("commit", "code"), [(ABORT, NONE), (COMMIT, ITS)])
def test_the_second_protocol_aborts_without_a_transaction_but_does_not_commit(
    producer: TransactionClient, commit: bool, code: ErrorCode, is_complete: bool
) -> None:
    epoch = 0
    if is_complete:
        producer.add_as_broker((TOPIC, [0]), verify_only=False)
        epoch = end_and_wait(producer, commit=COMMIT).producer_epoch
    answer = producer.end(commit=commit, epoch=epoch)
    assert answer.error_code == code
    assert answer.producer_epoch == (epoch + 1 if code is NONE else -1)


@pytest.mark.parametrize(("version", "code"), [(1, OLD_FENCED), (2, FENCED), (4, FENCED), (5, FENCED)])
def test_a_fenced_producer_cannot_end_a_transaction(producer: TransactionClient, version: int, code: ErrorCode) -> None:
    producer.init()
    producer.init()
    assert producer.end(commit=COMMIT, version=version).error_code == code


def test_an_unknown_transactional_id_has_no_transaction_to_end(client: Client) -> None:
    answer = TransactionClient(client, "unknown").end(commit=COMMIT)
    assert answer.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


# WriteTxnMarkers


def write_marker(client: Client, topic: str, partition: int = 0, producer_id: int = 77, **more: Any) -> int:
    marker = m.WriteTxnMarkersRequestMarker(
        producer_id=producer_id,
        transaction_result=False,
        topics=[m.WriteTxnMarkersRequestTopic(name=topic, partition_indexes=[partition])],
        **({"producer_epoch": 3, "coordinator_epoch": 1} | more),
    )
    return int(client.ask(2, m.WriteTxnMarkersRequest(markers=[marker])).markers[0].topics[0].partitions[0].error_code)


def test_a_marker_is_in_the_log_when_it_is_answered(client: Client) -> None:
    assert write_marker(client, OTHER) == NONE
    assert (77, 3, False) in markers(client, OTHER)


@pytest.mark.parametrize(
    ("marker", "code"),
    [
        ({"producer_epoch": 2}, ErrorCode.INVALID_PRODUCER_EPOCH),
        ({"coordinator_epoch": 0}, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
        ({}, NONE),
    ],
)
def test_markers_of_replaced_producers_and_coordinators_are_refused(
    client: Client, marker: Any, code: ErrorCode
) -> None:
    assert write_marker(client, OTHER, producer_id=78) == NONE
    assert write_marker(client, OTHER, producer_id=78, **marker) == code


@pytest.mark.parametrize(
    ("topic", "partition", "code"),
    [
        ("nowhere", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (OTHER, 5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("__transaction_state", 0, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_markers_go_to_partitions_of_clients_alone(
    producer: TransactionClient, topic: str, partition: int, code: ErrorCode
) -> None:
    assert write_marker(producer.client, topic, partition) == code


@pytest.mark.parametrize("field", ["producer_id", "producer_epoch"])
def test_a_marker_without_a_producer_is_refused(client: Client, field: str) -> None:
    assert write_marker(client, OTHER, **{field: -1}) == ErrorCode.INVALID_REQUEST


# DescribeTransactions and ListTransactions


def test_an_unknown_transactional_id_is_described_as_not_found(producer: TransactionClient) -> None:
    assert TransactionClient(producer.client, "unknown").describe().error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def listed(client: Client, version: int, **filters: Any) -> set[str]:
    answer = client.ask(version, m.ListTransactionsRequest(**filters))
    assert answer.error_code == NONE
    return {each.transactional_id for each in answer.transaction_states}


@pytest.mark.parametrize("version", range(3))
def test_transactions_are_listed_by_state_and_producer(producer: TransactionClient, version: int) -> None:
    own, client = producer.transactional_id, producer.client
    assert own in listed(client, version)
    assert own in listed(client, version, state_filters=["Empty"])
    assert own not in listed(client, version, state_filters=["Ongoing"])
    assert listed(client, version, producer_id_filters=[producer.producer_id]) == {own}


def test_transactions_are_listed_by_pattern_and_duration(producer: TransactionClient) -> None:
    own, client = producer.transactional_id, producer.client
    assert listed(client, 2, transactional_id_pattern="test_.*duration") == {own}
    producer.add((TOPIC, [0]))
    time.sleep(0.002)  # a duration above 0 ms
    assert own in listed(client, 1, duration_filter=0)
    assert own not in listed(client, 1, duration_filter=TIMEOUT_MS)


def test_an_invalid_pattern_is_refused(client: Client) -> None:
    answer = client.ask(2, m.ListTransactionsRequest(transactional_id_pattern="("))
    assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_unknown_states_of_a_filter_are_named(producer: TransactionClient) -> None:
    answer = producer.client.ask(2, m.ListTransactionsRequest(state_filters=["Empty", "Nonsense"]))
    assert list(answer.unknown_state_filters) == ["Nonsense"]


# Restart


def test_transactions_are_known_after_a_restart(tmp_path: Path) -> None:
    with RunningApp(str(tmp_path)) as app, app.client() as client:
        client.create_topic(TOPIC)
        before = TransactionClient(client)
        before.begin()
        before.add((TOPIC, [0]))
    with RunningApp(str(tmp_path)) as app, app.client() as client:
        after = TransactionClient(client)
        assert after.describe().transaction_state == "Ongoing"
        after.producer_id, after.producer_epoch = before.pair
        assert after.end(commit=COMMIT, version=4).error_code == NONE
        after.wait_for_state("CompleteCommit")
        assert markers(client, TOPIC) == [(*before.pair, True)]
