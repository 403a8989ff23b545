"""Bugs that were reported of other brokers and clients, provoked on a running broker by raw requests.

Each test names the report. Those that are provoked elsewhere are in `rules.txt`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowstone.coordinator.record_batches import encode_batches
from flowstone.coordinator.transactions import record_format
from flowstone.coordinator.transactions.records import TransactionState, TransactionStored
from flowstone.errors import ApiError, ErrorCode
from flowstone.promise import Promise
from flowstone.replication.partition import ACKS_ALL
from flowstone.wire import messages as m
from tests.support.running_app import RunningApp
from tests.support.transactional_topic import TransactionalTopic
from tests.support.transactions import TransactionClient, eventually, markers
from tests.support.wire_client import Client, frame
from tests.unit.broker.handlers.test_read_committed import committed
from tests.unit.transactions.states import (
    GROUP,
    SETTINGS,
    TOPIC,
    HeldMarkers,
    commit_offset,
    identify,
    prepare,
    produce_to,
)

NONE, CT, PF = ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.PRODUCER_FENCED
ITS, IPE = ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH
V1, V2 = 4, 5  # EndTxn
PRODUCE_V1, PRODUCE_V2 = 11, 12
LAST_EPOCH = 32_766


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    with running(tmp_path_factory.mktemp("broker")) as app:
        with app.client() as client:
            prepare(client)
        yield app


def running(data: Path, **settings: str) -> RunningApp:
    return RunningApp(str(data), idle_poll_us="0", **{**SETTINGS, **settings})


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
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    name = f"t-{abs(hash(request.node.nodeid))}"
    assert client.create_topic(name) == NONE
    return name


def write(producer: TransactionClient, topic: str, value: bytes, sequence: int = 0, version: int = PRODUCE_V2) -> None:
    assert produce_to(producer, version, value, sequence, topic).error_code == NONE


def end(producer: TransactionClient, *, commit: bool = True, version: int = V2) -> None:
    """End the transaction, wait for its markers, and go on with the epoch of the next."""
    answer = producer.end(commit=commit, version=version)
    assert answer.error_code == NONE
    producer.wait_for_state("CompleteCommit" if commit else "CompleteAbort")
    if version >= V2:
        producer.producer_id, producer.producer_epoch = answer.producer_id, answer.producer_epoch


@pytest.mark.parametrize("late_commits", [True, False])
def test_an_end_that_was_delayed_does_not_end_the_next_transaction(
    client: Client, producer: TransactionClient, topic: str, late_commits: bool
) -> None:
    """KAFKA-17754: an EndTxn that a proxy held back arrives, twice, when the next transaction has records."""
    late = identify(producer, "current")
    write(producer, topic, b"first")
    end(producer)
    write(producer, topic, b"second")
    assert {late.end(commit=late_commits).error_code for _ in range(2)} == {PF}
    assert producer.describe().transaction_state == "Ongoing"
    assert committed(client, topic) == [b"first"]
    write(producer, topic, b"third", sequence=1)
    end(producer)
    assert committed(client, topic) == [b"first", b"second", b"third"]


@pytest.mark.parametrize("commit", [True, False])
def test_a_batch_that_was_delayed_becomes_part_of_no_transaction(
    client: Client, producer: TransactionClient, topic: str, commit: bool
) -> None:
    """KAFKA-14402 and 12671: a Produce request arrives after its marker, and holds back the stable offset for ever."""
    late = identify(producer, "current")
    write(producer, topic, b"in time")
    end(producer, commit=commit)
    end_offset = client.end_offset(topic)
    for version in (PRODUCE_V1, PRODUCE_V2):
        assert produce_to(late, version, b"late", 1, topic).error_code == IPE
    assert client.end_offset(topic) == end_offset
    write(producer, topic, b"next")
    assert produce_to(late, PRODUCE_V2, b"late", 1, topic).error_code == IPE
    end(producer)
    assert committed(client, topic) == [b"in time", b"next"][not commit :]


def test_a_delayed_batch_of_the_first_protocol_is_refused_by_verification(
    client: Client, producer: TransactionClient, topic: str
) -> None:
    """KAFKA-14402: the epoch does not tell it from one of the next transaction, so the coordinator is asked."""
    assert producer.add((topic, [0])) == [NONE]
    write(producer, topic, b"in time", version=PRODUCE_V1)
    end(producer, version=V1)
    assert produce_to(producer, PRODUCE_V1, b"late", 1, topic).error_code == ErrorCode.TRANSACTION_ABORTABLE
    assert produce_to(producer, PRODUCE_V1 - 1, b"late", 1, topic).error_code == ITS
    answer = client.fetch(topic, 0)
    assert answer.last_stable_offset == answer.high_watermark == 2


def test_two_delayed_ends_of_the_same_outcome_are_answered_alike(producer: TransactionClient, topic: str) -> None:
    """Redpanda, found by Jepsen: INVALID_TXN_STATE for a transaction that was committed."""
    late = identify(producer, "current")
    write(producer, topic, b"v")
    end(producer)
    answers = [late.end(commit=True) for _ in range(3)]
    assert {(each.error_code, each.producer_id, each.producer_epoch) for each in answers} == {(NONE, *producer.pair)}


def test_a_coordinator_epoch_is_remembered_through_a_restart(tmp_path: Path) -> None:
    """KAFKA-9144: a partition forgets which coordinator wrote last, and takes the marker of an older one."""

    def mark(client: Client, coordinator_epoch: int) -> int:
        topics = [m.WriteTxnMarkersRequestTopic(name=TOPIC, partition_indexes=[0])]
        marker = m.WriteTxnMarkersRequestMarker(
            producer_id=7,
            producer_epoch=0,
            transaction_result=True,
            topics=topics,
            coordinator_epoch=coordinator_epoch,
        )
        answer = client.ask(1, m.WriteTxnMarkersRequest(markers=[marker]))
        return int(answer.markers[0].topics[0].partitions[0].error_code)

    with running(tmp_path) as app, app.client() as client:
        prepare(client)
        topic = TransactionalTopic(app, TOPIC)
        topic.write(7, b"v")
        assert mark(client, 5) == NONE
        topic.write(7, b"w")
    for settings in ({}, {"producer_id_expiration_ms": "1"}):
        with running(tmp_path, **settings) as app, app.client() as client:
            assert mark(client, 4) == ErrorCode.TRANSACTION_COORDINATOR_FENCED
            assert client.fetch(TOPIC, 0).last_stable_offset == 2


def test_an_abort_without_records_right_after_a_commit_does_not_fence_its_producer(
    app: RunningApp, client: Client, producer: TransactionClient, topic: str
) -> None:
    """KAFKA-18464: the markers of the commit are not written yet."""
    held = HeldMarkers(app)
    held.is_holding = True
    write(producer, topic, b"v")
    answer = producer.end(commit=True)
    producer.producer_epoch = answer.producer_epoch
    assert producer.end(commit=False).error_code == CT
    held.release()
    eventually(lambda: producer.end(commit=False).error_code == NONE)
    producer.producer_epoch += 1
    write(producer, topic, b"w")
    end(producer)
    assert committed(client, topic) == [b"v", b"w"]


@pytest.mark.parametrize("version", [V1, V2])
def test_markers_whose_answer_is_lost_are_written_again_and_the_transaction_ends(
    app: RunningApp, client: Client, producer: TransactionClient, topic: str, version: int
) -> None:
    """KAFKA-19999: the leader has written the marker, refuses it the second time, and the transaction is stuck."""
    local = app.app.services.transactions.local_markers
    really_write, lost = local.write, 3

    def write_and_lose_the_answer(*args: Any) -> Promise[None]:
        nonlocal lost
        written = really_write(*args)
        if not lost:
            return written
        lost -= 1
        told: Promise[None] = Promise()
        told.set_exception(ApiError(ErrorCode.NETWORK_EXCEPTION))
        return told

    if version == V1:
        assert producer.add((topic, [0])) == [NONE]
    write(producer, topic, b"v", version=PRODUCE_V1 if version == V1 else PRODUCE_V2)
    local.write = write_and_lose_the_answer  # type: ignore[method-assign]
    try:
        end(producer, version=version)
    finally:
        local.write = really_write  # type: ignore[method-assign]
    assert len(markers(client, topic)) == 4
    assert committed(client, topic) == [b"v"]
    write_next = {V1: PRODUCE_V1, V2: PRODUCE_V2}[version]
    producer.add((topic, [0]))
    write(producer, topic, b"w", sequence=1 if version == V1 else 0, version=write_next)
    end(producer, commit=False, version=version)
    assert committed(client, topic) == [b"v"]


def test_offsets_of_the_next_transaction_are_taken_as_soon_as_the_last_is_complete(
    client: Client, producer: TransactionClient
) -> None:
    """KAFKA-17507 and 17877: the marker was answered before the group coordinator had applied it."""
    for offset in range(20):
        assert commit_offset(producer, 5, offset=offset) == NONE
        end(producer)
        topics = [m.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])]
        answer = client.ask(7, m.OffsetFetchRequest(group_id=GROUP, topics=topics, require_stable=True))
        (found,) = answer.topics[0].partitions
        assert (found.error_code, found.committed_offset) == (NONE, offset)


def test_a_commit_that_names_no_member_passes_beside_a_member(client: Client, producer: TransactionClient) -> None:
    """KAFKA-18060: a producer without the consumer's metadata commits for a group that has a member."""
    protocols = [m.JoinGroupRequestProtocol(name="range", metadata=b"")]
    join = m.JoinGroupRequest(
        group_id="with-member", session_timeout_ms=10_000, protocol_type="consumer", protocols=protocols
    )
    client.send(frame(3, join))
    client.receive()
    for version in range(3, 6):
        if version < 5:
            assert producer.add_offsets("with-member") == NONE
        assert commit_offset(producer, version, "with-member") == NONE
        end(producer)


# Epochs end at 32766


def plant(app: RunningApp, *records: TransactionStored) -> None:
    """Append records to the log of the transaction coordinator, which reads them when it is started again."""
    for record in records:
        place = app.app.services.transactions.partition_of(record.transactional_id)
        assert place is not None
        (batch,) = encode_batches(record_format, [record], 1, 1 << 20, None)
        partition = app.app.services.partitions.get(*place)
        app.call(lambda partition=partition, batch=batch: partition.append(batch, ACKS_ALL, is_own=True))  # type: ignore[misc]


@pytest.fixture(scope="module")
def exhausted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    """A broker with transactional ids `0` to `9`, whose epochs are nearly exhausted."""
    data, now_ms = tmp_path_factory.mktemp("exhausted"), 1_800_000_000_000
    with running(data) as app, app.client() as client:
        prepare(client)
        for number in range(10):
            state = TransactionState.EMPTY
            plant(app, TransactionStored(f"{number}", 7_000 + number, LAST_EPOCH, 60_000, state, now_ms))
    with running(data) as app:
        yield app


def at_last_epoch(client: Client, number: int) -> TransactionClient:
    producer = TransactionClient(client, f"{number}")
    producer.producer_id, producer.producer_epoch = 7_000 + number, LAST_EPOCH
    return producer


def end_with_new_id(producer: TransactionClient, *, commit: bool) -> Any:
    """End at the last epoch: as a client, ask again until the broker has a producer id at hand."""
    answers: list[Any] = []

    def has_ended() -> bool:
        answers.append(producer.end(commit=commit))
        return bool(answers[-1].error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    eventually(has_ended)
    return answers[-1]


@pytest.mark.parametrize(("number", "commit"), [(0, True), (1, False)])
def test_a_transaction_at_the_last_epoch_ends_and_goes_on_with_a_new_producer_id(
    exhausted: RunningApp, number: int, commit: bool
) -> None:
    """KAFKA-18660: the epoch overflows."""
    with exhausted.client() as client:
        producer, topic = at_last_epoch(client, number), f"own-{number}"
        assert client.create_topic(topic) == NONE
        write(producer, topic, b"first")
        answer = end_with_new_id(producer, commit=commit)
        assert (answer.error_code, answer.producer_epoch) == (NONE, 0)
        assert answer.producer_id not in (-1, producer.producer_id)
        producer.wait_for_state("CompleteCommit" if commit else "CompleteAbort")
        assert markers(client, topic) == [(producer.producer_id, LAST_EPOCH + 1, commit)]
        again = producer.end(commit=commit)
        assert (again.error_code, again.producer_id, again.producer_epoch) == (NONE, answer.producer_id, 0)
        assert producer.end(commit=not commit).error_code == ITS
        producer.producer_id, producer.producer_epoch = answer.producer_id, 0
        write(producer, topic, b"second")
        end(producer)
        assert committed(client, topic) == [b"first", b"second"][not commit :]


def test_initialization_at_the_last_epoch_gives_a_new_producer_id_also_when_it_is_repeated(
    exhausted: RunningApp,
) -> None:
    with exhausted.client() as client:
        producer = at_last_epoch(client, 2)
        given = {"producer_id": producer.producer_id, "producer_epoch": LAST_EPOCH}
        first, again = producer.init(**given), producer.init(**given)
        assert (first.error_code, first.producer_epoch) == (NONE, 0)
        assert (again.error_code, again.producer_id, again.producer_epoch) == (NONE, first.producer_id, 0)
        assert first.producer_id != producer.producer_id


def test_the_first_protocol_ends_a_transaction_at_the_last_epoch_without_another(exhausted: RunningApp) -> None:
    with exhausted.client() as client:
        producer = at_last_epoch(client, 3)
        assert producer.add((TOPIC, [0])) == [NONE]
        end(producer, version=V1)
        assert producer.add((TOPIC, [0])) == [NONE]
        assert producer.describe().producer_epoch == LAST_EPOCH


def test_a_failover_amid_a_roll_over_loses_neither_producer_id(tmp_path: Path) -> None:
    """KAFKA-20310: the next coordinator knows neither the previous nor the next producer id."""
    with running(tmp_path) as app, app.client() as client:
        prepare(client)
        plant(app, TransactionStored("0", 7_000, LAST_EPOCH, 60_000, TransactionState.EMPTY, 1_800_000_000_000))
    with running(tmp_path) as app, app.client() as client:
        producer = at_last_epoch(client, 0)
        write(producer, TOPIC, b"v")
        HeldMarkers(app).is_holding = True
        answer = end_with_new_id(producer, commit=True)
        assert producer.describe().transaction_state == "PrepareCommit"
    for _ in range(2):  # the first of them completes the transaction
        with running(tmp_path) as app, app.client() as client:
            producer.client = client
            producer.wait_for_state("CompleteCommit")
            again = producer.end(commit=True)
            assert (again.error_code, again.producer_id, again.producer_epoch) == (NONE, answer.producer_id, 0)
            assert markers(client, TOPIC) == [(7_000, LAST_EPOCH + 1, True)]
            assert committed(client, TOPIC) == [b"v"]


# Timeouts


SCANNING = {"transaction_abort_timed_out_transaction_cleanup_interval_ms": "20"}


def test_a_producer_of_the_second_protocol_goes_on_after_a_timeout(tmp_path: Path) -> None:
    with running(tmp_path, **SCANNING) as app, app.client() as client:
        prepare(client)
        producer = TransactionClient(client, "slow")
        producer.begin()
        producer.producer_epoch = producer.init(timeout_ms=1).producer_epoch
        write(producer, TOPIC, b"too slow")
        producer.wait_for_state("CompleteAbort")
        assert produce_to(producer, PRODUCE_V2, b"late", 1).error_code == IPE
        assert producer.end(commit=True).error_code == ITS
        answer = producer.end(commit=False)
        assert (answer.error_code, answer.producer_epoch) == (NONE, producer.producer_epoch + 1)
        producer.producer_epoch = answer.producer_epoch
        given = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
        producer.producer_epoch = producer.init(**given).producer_epoch  # with more time
        write(producer, TOPIC, b"in time")
        end(producer)
        assert committed(client, TOPIC) == [b"in time"]


def test_a_timeout_at_the_last_epoch_gives_a_new_producer_id(tmp_path: Path) -> None:
    """KAFKA-20090."""
    with running(tmp_path) as app, app.client() as client:
        prepare(client)
        plant(app, TransactionStored("0", 7_000, LAST_EPOCH, 1, TransactionState.EMPTY, 1_800_000_000_000))
    with running(tmp_path, **SCANNING) as app, app.client() as client:
        producer = at_last_epoch(client, 0)
        write(producer, TOPIC, b"too slow")
        producer.wait_for_state("CompleteAbort")
        assert markers(client, TOPIC) == [(7_000, LAST_EPOCH + 1, False)]
        assert produce_to(producer, PRODUCE_V2, b"late", 1).error_code == IPE
        answer = producer.end(commit=False)
        assert (answer.error_code, answer.producer_epoch) == (NONE, 0)
        assert answer.producer_id not in (-1, 7_000)
        assert committed(client, TOPIC) == []
