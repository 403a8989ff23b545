"""Transactional Produce over a real socket, with a transaction coordinator that answers when a test says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from flowstone.broker.requests import transaction_verification
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.apis import APIS
from flowstone.wire.codec import response_decoder
from flowstone.wire.frames import parse_response_header
from flowstone.wire.messages import ProduceRequest, ProduceRequestPartition, ProduceRequestTopic, ProduceResponse
from flowstone.wire.record_batch import Record, build_batch
from tests.support.running_app import RunningApp
from tests.support.transactional_topic import HeldCoordinator, Question, TransactionalTopic, transactional_batch
from tests.support.wire_client import Client, batch_of, frame
from tests.unit.broker.handlers.test_read_committed import committed

ID, PID, OTHER_PID = "writer", 9001, 9002
V1_OLD, V1, V2 = 10, 11, 12
PRODUCE = 0
TIMEOUT_S = 10.0


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    with RunningApp(str(tmp_path_factory.mktemp("transactional")), idle_poll_us="0") as running:
        yield running


@pytest.fixture
def client(app: RunningApp) -> Iterator[Client]:
    with app.client() as connected:
        yield connected


@pytest.fixture
def topic(app: RunningApp, client: Client, request: pytest.FixtureRequest) -> TransactionalTopic:
    name = f"t-{abs(hash(request.node.nodeid))}"
    assert client.create_topic(name, partitions=3) == 0
    return TransactionalTopic(app, name)


@pytest.fixture
def coordinator(app: RunningApp) -> Iterator[HeldCoordinator]:
    own, coordinator = app.app.services.transactions, HeldCoordinator()
    app.app.services.transactions = cast(Any, coordinator)
    yield coordinator
    app.app.services.transactions = own
    assert app.call(lambda: app.app.services.verification.held_bytes) == 0
    assert not app.app.services.verification.is_busy(PID)


def request_of(topic: str, *batches: tuple[int, bytes], transactional_id: str | None = ID) -> ProduceRequest:
    partitions = [ProduceRequestPartition(index=index, records=batch) for index, batch in batches]
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[ProduceRequestTopic(name=topic, partition_data=partitions)],
    )


def codes(response: ProduceResponse) -> list[ErrorCode]:
    return [ErrorCode(each.error_code) for topic in response.responses for each in topic.partition_responses]


def produce(
    client: Client, topic: str, batch: bytes, version: int = V1, transactional_id: str | None = ID
) -> ErrorCode:
    return codes(client.ask(version, request_of(topic, (0, batch), transactional_id=transactional_id)))[0]


def received(client: Client, version: int) -> ProduceResponse:
    """The next response to a request that was sent as bytes."""
    data = memoryview(client.receive())
    _, at = parse_response_header(data, 0, APIS[PRODUCE].has_flexible_response_header(version))
    return cast(ProduceResponse, response_decoder(PRODUCE, version)(data, at))


def until(app: RunningApp, condition: Callable[[], Any]) -> None:
    """Return once it holds on the broker's loop."""
    deadline = time.monotonic() + TIMEOUT_S
    while not app.call(condition):
        assert time.monotonic() < deadline, "it never came to hold"


def asked(app: RunningApp, coordinator: HeldCoordinator, number: int = 1) -> Question:
    """The question of this number, once it has been asked."""
    until(app, lambda: len(coordinator.questions) >= number)
    return coordinator.questions[number - 1]


def answer(app: RunningApp, question: Question, code: ErrorCode = ErrorCode.NONE) -> None:
    app.call(lambda: question.answer.set_result(code))


def log_end(app: RunningApp, topic: TransactionalTopic) -> int:
    return app.call(lambda: app.app.services.partitions.get(topic.topic, 0).log.log_end_offset)


def stable_offset(app: RunningApp, topic: TransactionalTopic) -> int:
    return app.call(lambda: app.app.services.partitions.get(topic.topic, 0).last_stable_offset)


# What is refused without a coordinator


def test_a_transactional_batch_without_a_transactional_id_is_refused(
    client: Client, topic: TransactionalTopic, coordinator: HeldCoordinator
) -> None:
    code = produce(client, topic.topic, transactional_batch(b"v", PID), transactional_id=None)
    assert (code, coordinator.questions) == (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, [])


def test_a_request_with_batches_of_two_producers_is_refused_as_a_whole(
    app: RunningApp, client: Client, topic: TransactionalTopic, coordinator: HeldCoordinator
) -> None:
    batches = [(0, transactional_batch(b"v", PID)), (1, transactional_batch(b"v", OTHER_PID))]
    response = client.ask(V1, request_of(topic.topic, *batches))
    assert codes(response) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
    assert (coordinator.questions, log_end(app, topic)) == ([], 0)


def test_a_batch_outside_the_producers_open_transaction_is_refused(
    client: Client, topic: TransactionalTopic, coordinator: HeldCoordinator
) -> None:
    assert produce(client, topic.topic, transactional_batch(b"v", PID)) is ErrorCode.NONE
    plain = build_batch(
        [Record(0, int(time.time() * 1000), b"k", b"v")], producer_id=PID, producer_epoch=0, base_sequence=1
    )
    assert produce(client, topic.topic, plain, transactional_id=None) is ErrorCode.INVALID_TXN_STATE


def test_a_broken_transactional_batch_is_refused_alone(
    client: Client, topic: TransactionalTopic, coordinator: HeldCoordinator
) -> None:
    good = transactional_batch(b"v", PID)
    broken = good[:16] + b"\x07" + good[17:]
    response = client.ask(V1, request_of(topic.topic, (0, broken), (1, good), (2, good[:40])))
    assert codes(response) == [ErrorCode.CORRUPT_MESSAGE, ErrorCode.NONE, ErrorCode.CORRUPT_MESSAGE]


def test_an_old_epoch_is_told_before_the_coordinator_is_asked(
    client: Client, topic: TransactionalTopic, coordinator: HeldCoordinator
) -> None:
    topic.write(PID, b"v", epoch=3)
    topic.end(PID, commits=True, epoch=3)
    coordinator.answer = ErrorCode.TRANSACTION_ABORTABLE
    assert produce(client, topic.topic, transactional_batch(b"v", PID, epoch=2)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert coordinator.questions == []


# What the coordinator is asked


@pytest.mark.parametrize(("version", "verify_only"), [(3, True), (V1_OLD, True), (V1, True), (V2, False)])
def test_the_version_says_whether_the_partition_is_verified_or_added(
    client: Client, topic: TransactionalTopic, coordinator: HeldCoordinator, version: int, verify_only: bool
) -> None:
    assert produce(client, topic.topic, transactional_batch(b"v", PID, epoch=4), version) is ErrorCode.NONE
    (question,) = coordinator.questions
    assert question[:5] == (ID, PID, 4, (TopicPartition(topic.topic, 0),), verify_only)


@pytest.mark.parametrize("version", [V1, V2])
def test_the_coordinator_is_asked_once_per_transaction_and_partition(
    client: Client, topic: TransactionalTopic, coordinator: HeldCoordinator, version: int
) -> None:
    for sequence in range(3):
        batch = transactional_batch(b"v", PID, sequence=sequence)
        assert produce(client, topic.topic, batch, version) is ErrorCode.NONE
    assert len(coordinator.questions) == 1
    topic.end(PID, commits=True, epoch=version == V2, version=1 + (version == V2))
    batch = transactional_batch(b"v", PID, epoch=version == V2, sequence=0 if version == V2 else 3)
    assert produce(client, topic.topic, batch, version) is ErrorCode.NONE
    assert len(coordinator.questions) == 2


def test_the_partitions_of_a_request_are_asked_about_at_once(
    client: Client, topic: TransactionalTopic, coordinator: HeldCoordinator
) -> None:
    batches = [(index, transactional_batch(b"v", PID)) for index in range(3)]
    assert codes(client.ask(V2, request_of(topic.topic, *batches))) == [ErrorCode.NONE] * 3
    (question,) = coordinator.questions
    assert [each.partition for each in question.partitions] == [0, 1, 2]


def test_an_idempotent_batch_in_a_transactional_request_needs_no_coordinator(
    client: Client, topic: TransactionalTopic, coordinator: HeldCoordinator
) -> None:
    assert produce(client, topic.topic, batch_of(b"v")) is ErrorCode.NONE
    assert coordinator.questions == []


TOLD = [
    (ErrorCode.TRANSACTION_ABORTABLE, V1_OLD, ErrorCode.INVALID_TXN_STATE),
    (ErrorCode.TRANSACTION_ABORTABLE, V1, ErrorCode.TRANSACTION_ABORTABLE),
    (ErrorCode.PRODUCER_FENCED, V1_OLD, ErrorCode.INVALID_PRODUCER_EPOCH),
    (ErrorCode.PRODUCER_FENCED, V2, ErrorCode.INVALID_PRODUCER_EPOCH),
    (ErrorCode.INVALID_PRODUCER_ID_MAPPING, V1, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    (ErrorCode.CONCURRENT_TRANSACTIONS, V1, ErrorCode.NOT_ENOUGH_REPLICAS),
    (ErrorCode.CONCURRENT_TRANSACTIONS, V2, ErrorCode.CONCURRENT_TRANSACTIONS),
    (ErrorCode.NOT_COORDINATOR, V1, ErrorCode.NOT_ENOUGH_REPLICAS),
    (ErrorCode.COORDINATOR_NOT_AVAILABLE, V2, ErrorCode.NOT_ENOUGH_REPLICAS),
    (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, V2, ErrorCode.NOT_ENOUGH_REPLICAS),
    (ErrorCode.NETWORK_EXCEPTION, V1_OLD, ErrorCode.NOT_ENOUGH_REPLICAS),
    (ErrorCode.OPERATION_NOT_ATTEMPTED, V2, ErrorCode.NOT_ENOUGH_REPLICAS),
]


@pytest.mark.parametrize(("said", "version", "told"), TOLD, ids=[f"{said.name}-{at}" for said, at, _ in TOLD])
def test_a_refusal_of_the_coordinator_is_told_as_the_version_knows_it(
    app: RunningApp,
    client: Client,
    topic: TransactionalTopic,
    coordinator: HeldCoordinator,
    said: ErrorCode,
    version: int,
    told: ErrorCode,
) -> None:
    coordinator.answer = said
    assert produce(client, topic.topic, transactional_batch(b"v", PID), version) is told
    assert log_end(app, topic) == 0


def test_a_concurrent_transaction_is_asked_about_again_until_it_has_ended(
    app: RunningApp, client: Client, topic: TransactionalTopic, coordinator: HeldCoordinator
) -> None:
    coordinator.answer = None
    client.send(frame(V2, request_of(topic.topic, (0, transactional_batch(b"v", PID)))))
    answer(app, asked(app, coordinator, 1), ErrorCode.CONCURRENT_TRANSACTIONS)
    answer(app, asked(app, coordinator, 2))
    assert codes(received(client, V2)) == [ErrorCode.NONE]


def test_a_coordinator_that_does_not_answer_is_given_up(
    client: Client, topic: TransactionalTopic, coordinator: HeldCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_verification, "ANSWER_S_MAX", 0.05)
    coordinator.answer = None
    assert produce(client, topic.topic, transactional_batch(b"v", PID)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert coordinator.questions[0].answer.cancelled()


# Without asking


@pytest.mark.parametrize(("version", "questions"), [(V1_OLD, 0), (V1, 0), (V2, 1)])
def test_a_partition_that_a_coordinator_here_knows_is_not_asked_about_unless_it_is_added(
    app: RunningApp,
    client: Client,
    topic: TransactionalTopic,
    coordinator: HeldCoordinator,
    version: int,
    questions: int,
) -> None:
    coordinator.verified.add(TopicPartition(topic.topic, 0))
    batches = (0, transactional_batch(b"known", PID)), (1, transactional_batch(b"unknown", PID))
    assert codes(client.ask(version, request_of(topic.topic, *batches[:1]))) == [ErrorCode.NONE]
    assert len(coordinator.questions) == questions
    assert codes(client.ask(version, request_of(topic.topic, *batches[1:]))) == [ErrorCode.NONE]
    assert len(coordinator.questions) == questions + 1


def test_one_batch_of_a_request_is_not_taken_for_another(
    client: Client, topic: TransactionalTopic, coordinator: HeldCoordinator
) -> None:
    coordinator.verified.add(TopicPartition(topic.topic, 0))
    coordinator.answer = ErrorCode.TRANSACTION_ABORTABLE
    batches = [(index, transactional_batch(b"v", PID)) for index in range(2)]
    told = codes(client.ask(V1, request_of(topic.topic, *batches)))
    assert told == [ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE]


# While the coordinator is asked


def test_nobody_else_waits_for_the_coordinator(
    app: RunningApp, client: Client, topic: TransactionalTopic, coordinator: HeldCoordinator
) -> None:
    coordinator.answer = None
    client.send(frame(V1, request_of(topic.topic, (0, transactional_batch(b"late", PID)))))
    question = asked(app, coordinator)
    with app.client() as other:
        assert other.produce(topic.topic, batch_of(b"plain")).error_code == 0
        coordinator.answer = ErrorCode.NONE
        assert produce(other, topic.topic, transactional_batch(b"other", OTHER_PID)) is ErrorCode.NONE
        assert log_end(app, topic) == 2
    answer(app, question)
    assert codes(received(client, V1)) == [ErrorCode.NONE]


@pytest.mark.parametrize("version", [V1, V2])
def test_five_requests_in_flight_keep_their_order_while_the_first_is_verified(
    app: RunningApp, client: Client, topic: TransactionalTopic, coordinator: HeldCoordinator, version: int
) -> None:
    coordinator.answer = None
    values = [b"%d" % sequence for sequence in range(5)]
    batches = [transactional_batch(value, PID, sequence=at) for at, value in enumerate(values)]
    client.send(b"".join(frame(version, request_of(topic.topic, (0, batch))) for batch in batches))
    answer(app, asked(app, coordinator))
    assert [codes(received(client, version)) for _ in values] == [[ErrorCode.NONE]] * 5
    topic.end(PID, commits=True, epoch=version == V2, version=1 + (version == V2))
    assert committed(client, topic.topic) == values
    assert len(coordinator.questions) == 1


def test_a_producers_batches_over_another_connection_wait_behind_those_being_verified(
    app: RunningApp, client: Client, topic: TransactionalTopic, coordinator: HeldCoordinator
) -> None:
    """As an unknown producer may begin with any sequence, the second batch alone would be taken, and the first lost."""
    coordinator.answer = None
    client.send(frame(V1, request_of(topic.topic, (0, transactional_batch(b"0", PID, sequence=0)))))
    question = asked(app, coordinator)
    with app.client() as other:
        other.send(frame(V1, request_of(topic.topic, (0, transactional_batch(b"1", PID, sequence=1)))))
        held = app.app.services.verification
        one = len(transactional_batch(b"0", PID))
        until(app, lambda: held.held_bytes == 2 * one)
        assert log_end(app, topic) == 0
        answer(app, question)
        assert codes(received(client, V1)) == [ErrorCode.NONE]
        assert codes(received(other, V1)) == [ErrorCode.NONE]
    topic.end(PID, commits=True)
    assert committed(client, topic.topic) == [b"0", b"1"]


def test_what_is_appended_after_verification_is_what_was_sent(
    app: RunningApp, client: Client, topic: TransactionalTopic, coordinator: HeldCoordinator
) -> None:
    """The buffer that the request was received into has been used for others in between (KAFKA-15653)."""
    coordinator.answer = None
    client.send(frame(V1, request_of(topic.topic, (0, transactional_batch(b"mine" * 500, PID)))))
    question = asked(app, coordinator)
    with app.client() as other:
        for _ in range(20):
            assert other.produce(topic.topic, batch_of(b"theirs" * 500), partition=1).error_code == 0
    answer(app, question)
    assert codes(received(client, V1)) == [ErrorCode.NONE]
    topic.end(PID, commits=True)
    assert committed(client, topic.topic) == [b"mine" * 500]


def test_a_batch_is_appended_although_its_connection_has_gone(
    app: RunningApp, client: Client, topic: TransactionalTopic, coordinator: HeldCoordinator
) -> None:
    """The producer sends the same batch again; what is in the log then is told as a duplicate."""
    coordinator.answer = None
    with app.client() as gone:
        gone.send(frame(V1, request_of(topic.topic, (0, transactional_batch(b"v", PID)))))
        question = asked(app, coordinator)
    answer(app, question)
    until(app, lambda: app.app.services.partitions.get(topic.topic, 0).log.log_end_offset == 1)
    coordinator.answer = ErrorCode.NONE
    assert produce(client, topic.topic, transactional_batch(b"v", PID)) is ErrorCode.NONE
    assert log_end(app, topic) == 1


def test_too_many_held_bytes_are_refused_and_the_client_tries_again(
    app: RunningApp, client: Client, topic: TransactionalTopic, coordinator: HeldCoordinator, monkeypatch: Any
) -> None:
    verification = transaction_verification.TransactionVerification(app.app.services.clock, held_bytes_max=1000)
    monkeypatch.setattr(app.app.services, "verification", verification)
    coordinator.answer = None
    client.send(frame(V1, request_of(topic.topic, (0, transactional_batch(b"v" * 2000, PID)))))
    question = asked(app, coordinator)
    with app.client() as other:
        code = produce(other, topic.topic, transactional_batch(b"v", OTHER_PID))
        assert code is ErrorCode.NOT_ENOUGH_REPLICAS
    answer(app, question)
    assert codes(received(client, V1)) == [ErrorCode.NONE]
    assert app.call(lambda: verification.held_bytes) == 0


# Markers


@pytest.mark.parametrize("commits", [True, False])
def test_a_marker_during_verification_refuses_the_batch(
    app: RunningApp, client: Client, topic: TransactionalTopic, coordinator: HeldCoordinator, commits: bool
) -> None:
    """Appended after it, the batch would hold back the stable offset for good."""
    coordinator.answer = None
    client.send(frame(V1, request_of(topic.topic, (0, transactional_batch(b"v", PID)))))
    question = asked(app, coordinator)
    topic.end(PID, commits=commits)
    answer(app, question)
    assert codes(received(client, V1)) == [ErrorCode.INVALID_TXN_STATE]
    assert log_end(app, topic) == stable_offset(app, topic) == 1


def test_the_marker_of_the_transaction_before_does_not_refuse_the_next_ones_first_batch(
    app: RunningApp, client: Client, topic: TransactionalTopic, coordinator: HeldCoordinator
) -> None:
    """Under the second protocol it has the epoch of the next transaction (KAFKA-18575)."""
    topic.write(PID, b"first")
    coordinator.answer = None
    client.send(frame(V2, request_of(topic.topic, (0, transactional_batch(b"second", PID, epoch=1)))))
    question = asked(app, coordinator)
    topic.end(PID, commits=True, epoch=1, version=2)
    answer(app, question)
    assert codes(received(client, V2)) == [ErrorCode.NONE]
    assert committed(client, topic.topic) == [b"first"]


def test_a_marker_that_aborts_the_transaction_being_verified_refuses_its_batch(
    app: RunningApp, client: Client, topic: TransactionalTopic, coordinator: HeldCoordinator
) -> None:
    coordinator.answer = None
    client.send(frame(V2, request_of(topic.topic, (0, transactional_batch(b"v", PID, epoch=1)))))
    question = asked(app, coordinator)
    topic.end(PID, commits=False, epoch=2, version=2)
    answer(app, question)
    assert codes(received(client, V2)) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert stable_offset(app, topic) == log_end(app, topic) == 1


@pytest.mark.parametrize("version", [V1_OLD, V1, V2])
def test_a_batch_that_arrives_after_the_marker_does_not_hold_back_the_stable_offset(
    app: RunningApp, client: Client, topic: TransactionalTopic, coordinator: HeldCoordinator, version: int
) -> None:
    """KAFKA-14402 and KAFKA-12671: a delayed Produce of an ended transaction opened one that nobody ended."""
    assert produce(client, topic.topic, transactional_batch(b"v", PID), version) is ErrorCode.NONE
    is_second = version == V2
    topic.end(PID, commits=True, epoch=is_second, version=1 + is_second)
    coordinator.answer = ErrorCode.TRANSACTION_ABORTABLE
    late = produce(client, topic.topic, transactional_batch(b"late", PID, sequence=1), version)
    expected = {
        V1_OLD: ErrorCode.INVALID_TXN_STATE,
        V1: ErrorCode.TRANSACTION_ABORTABLE,
        V2: ErrorCode.INVALID_PRODUCER_EPOCH,
    }
    assert late is expected[version]
    assert stable_offset(app, topic) == log_end(app, topic) == 2


def test_the_first_batch_of_an_unknown_producer_must_begin_at_zero_under_the_second_protocol(
    client: Client, topic: TransactionalTopic, coordinator: HeldCoordinator
) -> None:
    batch = transactional_batch(b"v", PID, sequence=5)
    assert produce(client, topic.topic, batch, V2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(client, topic.topic, batch, V1) is ErrorCode.NONE


def test_a_reader_beside_the_writers_never_sees_aborted_records(
    app: RunningApp, topic: TransactionalTopic, coordinator: HeldCoordinator
) -> None:
    """KAFKA-9807: the stable offset and the list of aborted transactions were of different moments."""
    read: list[bytes] = []

    async def write() -> None:
        for number in range(40):
            producer_id = PID + number % 2
            await asyncio.to_thread(topic.write, producer_id, b"aborted" if number % 2 else b"%d" % number)
            await asyncio.to_thread(topic.end, producer_id, commits=number % 2 == 0)

    async def read_beside() -> None:
        writing = asyncio.ensure_future(write())
        with app.client() as reader:
            while not writing.done():
                read[:] = await asyncio.to_thread(committed, reader, topic.topic)
                assert b"aborted" not in read
            await writing
            read[:] = await asyncio.to_thread(committed, reader, topic.topic)

    asyncio.run(read_beside())
    assert read == [b"%d" % number for number in range(0, 40, 2)]
