"""TxnOffsetCommit and what it changes for other requests of groups, over the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from flowstone.broker.handlers import txn_offset_commit
from flowstone.broker.requests.context import RequestContext
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire import messages as m
from tests.support.running_app import RunningApp
from tests.support.transactions import TransactionClient
from tests.support.wire_client import Client

TOPIC, OFFSETS = "t", "__consumer_offsets"
NONE, UNSTABLE = ErrorCode.NONE, ErrorCode.UNSTABLE_OFFSET_COMMIT
STALE_MARKERS = 1000
ROUNDS = 30
KEY = 28


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    with running(tmp_path_factory.mktemp("broker")) as app:
        with app.client() as client:
            prepare(client)
        yield app


def running(data: Path) -> RunningApp:
    return RunningApp(str(data), transaction_state_log_num_partitions="1", offsets_topic_num_partitions="1")


def prepare(client: Client) -> None:
    assert client.create_topic(TOPIC, 3) == NONE
    assert client.ask(0, m.FindCoordinatorRequest(key="g")).error_code == NONE


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


@pytest.fixture
def group_id(request: pytest.FixtureRequest) -> str:
    return f"group of {request.node.name}"


def commit_request(
    producer: TransactionClient, group_id: str, offsets: Mapping[int, int], topic: str = TOPIC, **more: Any
) -> m.TxnOffsetCommitRequest:
    partitions = [
        m.TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="note")
        for index, offset in offsets.items()
    ]
    given = {
        "transactional_id": producer.transactional_id,
        "group_id": group_id,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "topics": [m.TxnOffsetCommitRequestTopic(name=topic, partitions=partitions)],
    }
    return m.TxnOffsetCommitRequest(**(given | more))


def commit(
    producer: TransactionClient, group_id: str, offsets: Mapping[int, int], version: int = 5, **more: Any
) -> list[int]:
    """The error codes of the partitions, in order."""
    answer = producer.client.ask(version, commit_request(producer, group_id, offsets, **more))
    return [each.error_code for topic in answer.topics for each in topic.partitions]


def plain_commit(client: Client, group_id: str, offset: int) -> int:
    partition = m.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    topics = [m.OffsetCommitRequestTopic(name=TOPIC, partitions=[partition])]
    answer = client.ask(8, m.OffsetCommitRequest(group_id=group_id, topics=topics))
    return int(answer.topics[0].partitions[0].error_code)


def fetched(
    client: Client, group_id: str, *partitions: int, stable: bool = True, version: int = 7
) -> list[tuple[int, int]]:
    """The error code and offset of each partition, or of all that the group has committed."""
    if version < 8:
        topics = [m.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=partitions)] if partitions else None
        answer = client.ask(version, m.OffsetFetchRequest(group_id=group_id, topics=topics, require_stable=stable))
    else:
        many = [m.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=partitions)] if partitions else None
        groups = [m.OffsetFetchRequestGroup(group_id=group_id, topics=many)]
        (answer,) = client.ask(version, m.OffsetFetchRequest(groups=groups, require_stable=stable)).groups
    assert answer.error_code == NONE
    return [(each.error_code, each.committed_offset) for topic in answer.topics for each in topic.partitions]


def end(producer: TransactionClient, *, is_commit: bool = True, version: int = 5) -> None:
    """End the transaction, wait for its markers, and go on with the epoch of the next one."""
    answer = producer.end(commit=is_commit, version=version)
    assert answer.error_code == NONE
    producer.wait_for_state("CompleteCommit" if is_commit else "CompleteAbort")
    if version >= 5:
        producer.producer_id, producer.producer_epoch = answer.producer_id, answer.producer_epoch


def write_marker(client: Client, producer_id: int, partition: int = 0, **more: Any) -> int:
    given = {"producer_epoch": 3, "coordinator_epoch": 1, "transaction_result": True} | more
    topics = [m.WriteTxnMarkersRequestTopic(name=OFFSETS, partition_indexes=[partition])]
    marker = m.WriteTxnMarkersRequestMarker(producer_id=producer_id, topics=topics, **given)
    return int(client.ask(2, m.WriteTxnMarkersRequest(markers=[marker])).markers[0].topics[0].partitions[0].error_code)


# TxnOffsetCommit


@pytest.mark.parametrize("version", range(6))
def test_offsets_are_committed_with_their_transaction(producer: TransactionClient, group_id: str, version: int) -> None:
    is_second_protocol = version >= 5
    if not is_second_protocol:
        assert producer.add_offsets(group_id) == NONE
    assert commit(producer, group_id, {0: 5, 2: 7}, version) == [NONE, NONE]
    assert fetched(producer.client, group_id, 0, 2) == [(UNSTABLE, -1), (UNSTABLE, -1)]
    end(producer, version=5 if is_second_protocol else 4)
    assert fetched(producer.client, group_id, 0, 2) == [(NONE, 5), (NONE, 7)]


def test_offsets_of_an_aborted_transaction_are_forgotten(producer: TransactionClient, group_id: str) -> None:
    assert plain_commit(producer.client, group_id, 3) == NONE
    assert commit(producer, group_id, {0: 5, 1: 6}) == [NONE, NONE]
    end(producer, is_commit=False)
    assert fetched(producer.client, group_id) == [(NONE, 3)]


@pytest.mark.parametrize(
    ("version", "code"),
    [(0, ErrorCode.INVALID_TXN_STATE), (3, ErrorCode.INVALID_TXN_STATE), (4, ErrorCode.TRANSACTION_ABORTABLE)],
)
def test_a_group_that_was_not_added_to_the_transaction_is_refused(
    producer: TransactionClient, group_id: str, version: int, code: ErrorCode
) -> None:
    assert commit(producer, group_id, {0: 5}, version) == [code]
    assert fetched(producer.client, group_id, 0) == [(NONE, -1)]


@pytest.mark.parametrize("version", range(6))
def test_a_fenced_producer_cannot_commit(producer: TransactionClient, group_id: str, version: int) -> None:
    producer.init()
    assert commit(producer, group_id, {0: 5}, version) == [ErrorCode.INVALID_PRODUCER_EPOCH]


def test_a_producer_whose_transaction_was_aborted_meanwhile_is_fenced(
    producer: TransactionClient, group_id: str
) -> None:
    assert commit(producer, group_id, {0: 5}) == [NONE]
    assert producer.init().error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    producer.wait_for_state("CompleteAbort")
    assert commit(producer, group_id, {0: 6}) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert fetched(producer.client, group_id, 0) == [(NONE, -1)]


def test_another_producer_id_is_no_producer_of_the_transactional_id(producer: TransactionClient, group_id: str) -> None:
    assert commit(producer, group_id, {0: 5}, producer_id=987654) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]


def test_an_empty_group_id_is_refused(producer: TransactionClient) -> None:
    assert commit(producer, "", {0: 5}) == [ErrorCode.INVALID_GROUP_ID]


def test_a_partition_that_does_not_exist_is_refused_alone(producer: TransactionClient, group_id: str) -> None:
    codes = commit(producer, group_id, {0: 5, 9: 5, 1: 6})
    assert codes == [NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NONE]


def test_where_no_partition_exists_the_group_does_not_become_part_of_the_transaction(
    producer: TransactionClient, group_id: str
) -> None:
    assert commit(producer, group_id, {0: 5}, topic="nowhere") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert producer.describe().transaction_state == "Empty"


@pytest.mark.parametrize("version", range(3, 6))
def test_a_member_of_another_generation_is_refused(producer: TransactionClient, group_id: str, version: int) -> None:
    producer.add_offsets(group_id)
    codes = commit(producer, group_id, {0: 5}, version, generation_id=4, member_id="removed")
    assert codes == [ErrorCode.ILLEGAL_GENERATION]


def test_a_commit_of_very_many_partitions_is_answered_partition_by_partition(
    producer: TransactionClient, group_id: str
) -> None:
    indexes = range(2000)
    codes = commit(producer, group_id, dict.fromkeys(indexes, 5))
    assert codes == [NONE] * 3 + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * (len(indexes) - 3)


class SlowCoordinator:
    """A transaction coordinator that finds every transaction open, and answers when a test says so."""

    def __init__(self) -> None:
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def add_or_verify(
        self, _transactional_id: str, _id: int, _epoch: int, partitions: Sequence[TopicPartition], *, verify_only: bool
    ) -> Mapping[TopicPartition, ErrorCode]:
        self.is_asked.set()
        await self.may_answer.wait()
        return dict.fromkeys(partitions, NONE)


@pytest.mark.parametrize(
    ("version", "transaction_version", "marker_epoch", "code"),
    [
        (4, 1, 3, ErrorCode.INVALID_TXN_STATE),
        (5, 2, 3, NONE),  # of the transaction before
        (5, 2, 4, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_a_marker_that_comes_during_the_verification_makes_the_commit_late(
    app: RunningApp, group_id: str, version: int, transaction_version: int, marker_epoch: int, code: ErrorCode
) -> None:
    producer_id = 5000 + 10 * version + marker_epoch
    partition = m.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=5)
    request = m.TxnOffsetCommitRequest(
        transactional_id="tx",
        group_id=group_id,
        producer_id=producer_id,
        producer_epoch=3,
        topics=[m.TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[partition])],
    )

    async def run() -> int:
        coordinator = SlowCoordinator()
        services = replace(app.app.services, transactions=cast(Any, coordinator))
        context = RequestContext(KEY, version, 0, cast(Any, None))
        answer = asyncio.ensure_future(txn_offset_commit.handle(services, context, request))
        await coordinator.is_asked.wait()
        await services.groups.write_marker(0, producer_id, marker_epoch, 0, True, transaction_version)
        coordinator.may_answer.set()
        return (await answer).topics[0].partitions[0].error_code

    assert app.run(run()) == code


# OffsetFetch


@pytest.mark.parametrize("version", [7, 8, 9])
def test_stable_offsets_are_told_apart_where_the_version_can(
    producer: TransactionClient, group_id: str, version: int
) -> None:
    assert plain_commit(producer.client, group_id, 3) == NONE
    assert commit(producer, group_id, {0: 5, 1: 6}) == [NONE, NONE]
    client = producer.client
    assert fetched(client, group_id, 0, 1, 2, version=version) == [(UNSTABLE, -1), (UNSTABLE, -1), (NONE, -1)]
    assert fetched(client, group_id, version=version) == [(UNSTABLE, -1), (UNSTABLE, -1)]
    assert fetched(client, group_id, 0, 1, stable=False, version=version) == [(NONE, 3), (NONE, -1)]


def test_offsets_are_stable_as_soon_as_a_transaction_is_complete(producer: TransactionClient, group_id: str) -> None:
    for offset in range(ROUNDS):
        assert commit(producer, group_id, {0: offset}) == [NONE]
        end(producer)
        assert fetched(producer.client, group_id, 0) == [(NONE, offset)]


# DeleteGroups


def test_a_group_is_not_deleted_while_a_transaction_holds_offsets_of_it(
    producer: TransactionClient, group_id: str
) -> None:
    def delete() -> int:
        return int(producer.client.ask(2, m.DeleteGroupsRequest(groups_names=[group_id])).results[0].error_code)

    assert commit(producer, group_id, {0: 5}) == [NONE]
    assert delete() == ErrorCode.NON_EMPTY_GROUP
    end(producer)
    assert delete() == NONE


# WriteTxnMarkers


def test_a_marker_of_a_group_partition_is_applied_when_it_is_answered(
    producer: TransactionClient, group_id: str
) -> None:
    assert commit(producer, group_id, {0: 5}) == [NONE]
    assert write_marker(producer.client, producer.producer_id, producer_epoch=producer.producer_epoch + 1) == NONE
    assert fetched(producer.client, group_id, 0) == [(NONE, 5)]


@pytest.mark.parametrize(
    ("stale", "code"),
    [
        ({"producer_epoch": 2}, ErrorCode.INVALID_PRODUCER_EPOCH),
        ({"coordinator_epoch": 0}, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
    ],
)
def test_a_thousand_stale_markers_do_not_make_the_groups_load_again(
    app: RunningApp, client: Client, group_id: str, stale: Any, code: ErrorCode
) -> None:
    producer_id = 4000 + code
    assert write_marker(client, producer_id) == NONE
    shard = app.app.services.groups.shard_of(group_id)
    assert shard is not None
    load, end_offset = shard.loading, client.end_offset(OFFSETS)
    assert {write_marker(client, producer_id, **stale) for _ in range(STALE_MARKERS)} == {code}
    assert plain_commit(client, group_id, 1) == NONE
    assert shard.loading is load
    assert client.end_offset(OFFSETS) == end_offset + 1


def test_a_marker_for_a_partition_that_is_not_led_here_is_to_be_sent_elsewhere(app: RunningApp) -> None:
    async def run() -> ErrorCode | None:
        promise = app.app.services.groups.write_marker(99, 1, 0, 0, True, 1)
        error = promise.exception()
        return getattr(error, "code", None)

    assert app.run(run()) is ErrorCode.NOT_LEADER_OR_FOLLOWER


# Restart


@pytest.mark.parametrize("is_commit", [True, False])
def test_offsets_of_an_open_transaction_are_pending_after_a_restart(tmp_path: Path, is_commit: bool) -> None:
    with running(tmp_path) as app, app.client() as client:
        prepare(client)
        producer = TransactionClient(client)
        producer.begin()
        assert plain_commit(client, "g", 3) == NONE
        assert commit(producer, "g", {1: 4}) == [NONE]
        end(producer)
        assert commit(producer, "g", {0: 5}) == [NONE]
    with running(tmp_path) as app, app.client() as client:
        producer.client = client
        assert fetched(client, "g", 0, 1) == [(UNSTABLE, -1), (NONE, 4)]
        end(producer, is_commit=is_commit)
        assert fetched(client, "g", 0, 1) == [(NONE, 5 if is_commit else 3), (NONE, 4)]
    with running(tmp_path) as app, app.client() as client:
        assert fetched(client, "g", 0, 1) == [(NONE, 5 if is_commit else 3), (NONE, 4)]
