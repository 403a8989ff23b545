"""WriteTxnMarkers in both versions, for a producer in every state that a partition may know it in."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from flowstone.errors import ErrorCode
from flowstone.wire import messages as m
from tests.support.running_app import RunningApp
from tests.support.transactional_topic import TransactionalTopic
from tests.support.transactions import markers
from tests.support.wire_client import Client

TOPIC, OFFSETS = "t", "__consumer_offsets"
EPOCH, COORDINATOR_EPOCH = 3, 5
OK, IPE, FENCED = ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED
_ids = itertools.count(1000)


class Broker:
    def __init__(self, app: RunningApp, client: Client) -> None:
        self.app, self.client = app, client
        self.topic = TransactionalTopic(app, TOPIC)

    def write_marker(
        self,
        producer_id: int,
        epoch: int = EPOCH,
        coordinator_epoch: int = COORDINATOR_EPOCH,
        transaction_version: int = 0,
        topic: str = TOPIC,
    ) -> ErrorCode:
        """Ask in version 2 if the transaction's version must be told, else in version 1."""
        marker = m.WriteTxnMarkersRequestMarker(
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=coordinator_epoch,
            transaction_result=True,
            topics=[m.WriteTxnMarkersRequestTopic(name=topic, partition_indexes=[0])],
            transaction_version=transaction_version,
        )
        answer = self.client.ask(2 if transaction_version else 1, m.WriteTxnMarkersRequest(markers=[marker]))
        return ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)

    def producer(self, state: str) -> int:
        """Return a producer id of which the partition knows nothing, an ended or an open transaction."""
        producer_id = next(_ids)
        if state != "unknown":
            assert self.write_marker(producer_id) is OK
        if state == "open":
            self.topic.write(producer_id, b"v", epoch=EPOCH)
        return producer_id


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    data = str(tmp_path_factory.mktemp("broker"))
    with RunningApp(data, idle_poll_us="0", offsets_topic_num_partitions="1") as app, app.client() as client:
        assert client.create_topic(TOPIC) == OK
        assert client.ask(0, m.FindCoordinatorRequest(key="g")).error_code == OK
        yield Broker(app, client)


TABLE = [
    # state, transaction version: the answers to the epoch before, the same, the next
    ("unknown", 0, (OK, OK, OK)),
    ("unknown", 2, (OK, OK, OK)),
    ("ended", 0, (IPE, OK, OK)),
    ("ended", 1, (IPE, OK, OK)),
    ("ended", 2, (IPE, OK, OK)),
    ("open", 0, (IPE, OK, OK)),
    ("open", 1, (IPE, OK, OK)),
    ("open", 2, (IPE, IPE, OK)),
]


@pytest.mark.parametrize(("state", "transaction_version", "codes"), TABLE)
def test_a_marker_is_taken_by_its_producer_epoch_and_protocol(
    broker: Broker, state: str, transaction_version: int, codes: tuple[ErrorCode, ...]
) -> None:
    """A marker of the second protocol has an epoch of its own; with the open transaction's it is late."""
    for epoch, code in zip((EPOCH - 1, EPOCH, EPOCH + 1), codes, strict=True):
        producer_id = broker.producer(state)
        before = markers(broker.client, TOPIC)
        found = broker.write_marker(producer_id, epoch, transaction_version=transaction_version)
        assert (epoch, found) == (epoch, code)
        assert markers(broker.client, TOPIC)[len(before) :] == [(producer_id, epoch, True)] * (code is OK)


@pytest.mark.parametrize("transaction_version", [0, 1, 2])
@pytest.mark.parametrize("state", ["ended", "open"])
@pytest.mark.parametrize("topic", [TOPIC, OFFSETS])
def test_a_marker_of_a_replaced_coordinator_is_refused(
    broker: Broker, topic: str, state: str, transaction_version: int
) -> None:
    producer_id = broker.producer(state) if topic == TOPIC else next(_ids)
    assert broker.write_marker(producer_id, topic=topic) is OK  # so that the partition knows the coordinator
    for coordinator_epoch, code in ((COORDINATOR_EPOCH - 1, FENCED), (COORDINATOR_EPOCH, OK), (99, OK)):
        found = broker.write_marker(producer_id, EPOCH + 1, coordinator_epoch, transaction_version, topic)
        assert (coordinator_epoch, found) == (coordinator_epoch, code)


@pytest.mark.parametrize("transaction_version", [0, 2])
@pytest.mark.parametrize("topic", [TOPIC, OFFSETS])
def test_a_marker_whose_answer_was_lost_may_be_written_again(
    broker: Broker, topic: str, transaction_version: int
) -> None:
    producer_id = next(_ids)
    asked = {"transaction_version": transaction_version, "topic": topic}
    codes = [broker.write_marker(producer_id, EPOCH, **asked) for _ in range(3)]
    assert codes == [OK] * 3
