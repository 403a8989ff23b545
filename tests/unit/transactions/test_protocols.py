"""Both protocols of transactions side by side, the feature that chooses between them, and transactions that hang."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flowstone.errors import ErrorCode
from flowstone.wire import messages as m
from tests.support.running_app import RunningApp
from tests.support.transactional_topic import TransactionalTopic
from tests.support.transactions import TransactionClient, markers
from tests.support.wire_client import Client
from tests.unit.broker.handlers.test_read_committed import committed
from tests.unit.transactions.states import GROUP, SETTINGS, commit_offset, prepare, produce_to

FEATURE = "transaction.version"
NONE = ErrorCode.NONE
V1, V2 = 4, 5  # EndTxn
SAFE_DOWNGRADE = 2


@pytest.fixture
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    data = str(tmp_path_factory.mktemp("broker"))
    with RunningApp(data, idle_poll_us="0", **SETTINGS) as running:
        yield running


@pytest.fixture
def client(app: RunningApp) -> Iterator[Client]:
    with app.client() as connected:
        prepare(connected)
        yield connected


class Producer:
    """A transactional producer of one of the protocols, which can also go over to the other."""

    def __init__(self, client: Client, transactional_id: str, version: int) -> None:
        self.requests, self.version = TransactionClient(client, transactional_id), version
        self.requests.begin()
        self._sequence = 0

    def write(self, value: bytes) -> None:
        if self.version == V1:
            assert self.requests.add(("t", [0])) == [NONE]
        answer = produce_to(self.requests, 12 if self.version == V2 else 11, value, self._sequence)
        assert answer.error_code == NONE
        self._sequence += 1

    def commit_offset(self, offset: int) -> None:
        if self.version == V1:
            assert self.requests.add_offsets(GROUP) == NONE
        assert commit_offset(self.requests, 5 if self.version == V2 else 3, offset=offset) == NONE

    def end(self, *, commit: bool = True) -> None:
        answer = self.requests.end(commit=commit, version=self.version)
        assert answer.error_code == NONE
        self.requests.wait_for_state("CompleteCommit" if commit else "CompleteAbort")
        if self.version == V2:
            self.requests.producer_id, self.requests.producer_epoch = answer.producer_id, answer.producer_epoch
            self._sequence = 0


def stored_offset(client: Client) -> int:
    topics = [m.OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
    answer = client.ask(7, m.OffsetFetchRequest(group_id=GROUP, topics=topics, require_stable=True))
    (found,) = answer.topics[0].partitions
    assert found.error_code == NONE
    return int(found.committed_offset)


def test_producers_of_both_protocols_write_to_one_partition(client: Client) -> None:
    old, new = Producer(client, "old", V1), Producer(client, "new", V2)
    expected = []
    for number in range(6):
        old.write(b"old %d" % number)
        new.write(b"new %d" % number)
        old.write(b"old too %d" % number)
        new.end(commit=number % 2 == 0)
        old.end(commit=number % 3 == 0)
        both = [
            (b"old %d" % number, number % 3),
            (b"new %d" % number, number % 2),
            (b"old too %d" % number, number % 3),
        ]
        expected += [value for value, remainder in both if not remainder]
    assert committed(client, "t") == expected


def test_one_producer_goes_over_from_one_protocol_to_the_other_and_back(client: Client) -> None:
    producer = Producer(client, "tx", V1)
    expected = []
    for number, version in enumerate((V1, V2, V2, V1, V1, V2)):
        producer.version = version
        producer.write(b"%d" % number)
        producer.commit_offset(number)
        producer.end(commit=number != 3)
        expected += [b"%d" % number] * (number != 3)
    assert committed(client, "t") == expected
    assert stored_offset(client) == 5


def level_of(client: Client) -> int:
    """The finalized level, as a client is told; 0 is not told."""
    answer = client.ask(4, m.ApiVersionsRequest(client_software_name="a", client_software_version="1"))
    return next((each.max_version_level for each in answer.finalized_features if each.name == FEATURE), 0)


def set_level(client: Client, level: int) -> None:
    change = m.UpdateFeaturesRequestFeatureUpdate(feature=FEATURE, max_version_level=level)
    change.upgrade_type = SAFE_DOWNGRADE if level < level_of(client) else 1
    assert client.ask(2, m.UpdateFeaturesRequest(feature_updates=[change])).error_code == NONE
    assert level_of(client) == level


def test_the_feature_changes_while_producers_of_both_protocols_work(client: Client) -> None:
    """Requests say by which protocol they go; the feature only tells clients which to choose, and aborts by timeout."""
    old, new = Producer(client, "old", V1), Producer(client, "new", V2)
    expected = []
    assert level_of(client) == 2
    for number, level in enumerate((0, 2, 1, 0, 1, 2)):
        old.write(b"old %d" % number)
        new.write(b"new %d" % number)
        set_level(client, level)
        new.write(b"new too %d" % number)
        old.end()
        new.end()
        expected += [b"old %d" % number, b"new %d" % number, b"new too %d" % number]
    assert committed(client, "t") == expected


@pytest.mark.parametrize("level", [0, 2])
def test_a_new_producer_aborts_the_transaction_of_the_former_at_every_level(client: Client, level: int) -> None:
    set_level(client, 1)
    set_level(client, level)
    zombie = Producer(client, "own", V2)
    zombie.write(b"zombie")
    Producer(client, "own", V2).write(b"open")
    assert [epoch for _, epoch, _ in markers(client, "t")] == [1]
    zombie_again = produce_to(zombie.requests, 12, b"zombie", 1)
    assert zombie_again.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    told = zombie.requests.end(commit=True).error_code
    assert told == ErrorCode.PRODUCER_FENCED


def test_the_versions_by_which_clients_choose_a_protocol_are_advertised(client: Client) -> None:
    answer = client.ask(4, m.ApiVersionsRequest(client_software_name="a", client_software_version="1"))
    versions = {each.api_key: each.max_version for each in answer.api_keys}
    names = {"Produce": 0, "InitProducerId": 22, "AddPartitionsToTxn": 24, "AddOffsetsToTxn": 25, "EndTxn": 26}
    names |= {"WriteTxnMarkers": 27, "TxnOffsetCommit": 28}
    assert {name: versions[key] for name, key in names.items()} == {
        "Produce": 13,
        "InitProducerId": 5,  # 6 is an unstable version of Kafka's
        "AddPartitionsToTxn": 5,
        "AddOffsetsToTxn": 4,
        "EndTxn": 5,
        "WriteTxnMarkers": 2,
        "TxnOffsetCommit": 5,
    }
    assert answer.finalized_features_epoch >= 0
    assert [
        (each.name, each.min_version, each.max_version) for each in answer.supported_features if each.name == FEATURE
    ] == [(FEATURE, 0, 2)]


def test_a_transaction_that_hangs_is_found_and_ended(app: RunningApp, client: Client) -> None:
    """One that no coordinator knows: its records are in the partition, and nobody will write a marker for them."""
    TransactionalTopic(app, "t").write(7, b"hangs", epoch=3)
    open_one = Producer(client, "open", V2)
    open_one.write(b"open")
    wanted = m.DescribeProducersRequestTopic(name="t", partition_indexes=[0])
    described = client.ask(0, m.DescribeProducersRequest(topics=[wanted])).topics[0].partitions[0]
    producers = {each.producer_id: each for each in described.active_producers}
    assert producers[7].current_txn_start_offset == 0
    listed = client.ask(2, m.ListTransactionsRequest(producer_id_filters=[7, open_one.requests.producer_id]))
    assert [each.transactional_id for each in listed.transaction_states] == ["open"]
    marker = m.WriteTxnMarkersRequestMarker(
        producer_id=7,
        producer_epoch=producers[7].producer_epoch,
        coordinator_epoch=producers[7].coordinator_epoch,
        transaction_result=False,
        topics=[m.WriteTxnMarkersRequestTopic(name="t", partition_indexes=[0])],
        transaction_version=0,
    )
    assert producers[7].coordinator_epoch == -1  # no marker of the producer was ever there
    marker.coordinator_epoch = 0
    answer = client.ask(2, m.WriteTxnMarkersRequest(markers=[marker]))
    assert answer.markers[0].topics[0].partitions[0].error_code == NONE
    assert client.fetch("t", 0).last_stable_offset == 1
    open_one.end()
    assert committed(client, "t") == [b"open"]
