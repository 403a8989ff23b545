"""What one healthy broker does not do: several brokers, broken frames, old versions, gaps left by compaction."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from flowstone.client import BadAnswer, Cluster, GaveUp, OffsetsLost, fetching
from flowstone.client.wire_session import RESPONSE_BYTES_MAX
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    FetchRequest,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsResponsePartition,
    ListOffsetsResponseTopic,
    MetadataRequest,
    MetadataResponse,
)
from flowstone.wire.record_batch import Record, build_batch
from tests.unit.client.batches import offsets_of
from tests.unit.client.scripted_broker import CLOSE, SILENCE, VERSIONS, ScriptedBroker, Torn, fetched, metadata

ORDERS = TopicPartition("orders", 0)
API_VERSIONS, FETCH = 18, 1


def records(*offsets: int) -> bytes:
    return build_batch([Record(offset, 0, None, b"value") for offset in offsets], base_offset=offsets[0])


class OneBroker:
    """Leads `orders-0`; fetches get the answers one after the other, the last one for ever."""

    def __init__(self, *answers: Any, **options: Any) -> None:
        self._answers = list(answers)
        self.broker = ScriptedBroker(self._answer, **options)

    def __enter__(self) -> ScriptedBroker:
        return self.broker

    def __exit__(self, *_: object) -> None:
        self.broker.stop()

    def _answer(self, request: Any) -> Any:
        if isinstance(request, MetadataRequest):
            return metadata({ORDERS: 1}, {1: self.broker})
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def test_a_gap_that_compaction_left_is_passed_within_a_response():
    with OneBroker(fetched(ORDERS, records(3, 7), high_watermark=8)) as broker, Cluster(broker.bootstrap) as cluster:
        assert offsets_of(cluster.fetch(ORDERS, 0, 8)) == [3, 7]


def test_a_gap_up_to_the_end_of_the_range_ends_it():
    answers = fetched(ORDERS, records(0, 1), high_watermark=100), fetched(ORDERS, high_watermark=100)
    with OneBroker(*answers) as broker, Cluster(broker.bootstrap) as cluster:
        assert offsets_of(cluster.fetch(ORDERS, 0, 50)) == [0, 1]


def test_with_read_committed_only_the_last_stable_offset_proves_a_gap():
    open_transaction = fetched(ORDERS, high_watermark=100, last_stable_offset=2)
    answers = fetched(ORDERS, records(0, 1), high_watermark=100, last_stable_offset=2), open_transaction
    with OneBroker(*answers) as broker, Cluster(broker.bootstrap, deadline_s=0.1) as cluster:
        ranges = cluster.fetch(ORDERS, 0, 50, read_committed=True)
        assert offsets_of([next(ranges)]) == [0, 1]
        with pytest.raises(GaveUp, match="orders-0 ends at 2"):
            next(ranges)
        assert all(each.isolation_level == 1 for each in broker.requests if isinstance(each, FetchRequest))


def test_a_log_start_above_the_position_is_a_loss_even_if_records_follow():
    answer = fetched(ORDERS, records(40, 41), high_watermark=100, log_start_offset=40)
    with (
        OneBroker(answer) as broker,
        Cluster(broker.bootstrap) as cluster,
        pytest.raises(OffsetsLost, match="offsets 10 to 39 are gone"),
    ):
        list(cluster.fetch(ORDERS, 10, 50))


def test_a_log_start_that_passes_while_the_records_are_on_their_way_loses_nothing():
    answer = fetched(ORDERS, records(10, 11), high_watermark=12, log_start_offset=11)
    with OneBroker(answer) as broker, Cluster(broker.bootstrap) as cluster:
        assert offsets_of(cluster.fetch(ORDERS, 10, 12)) == [10, 11]


def test_a_batch_that_is_cut_off_is_left_out_and_fetched_again():
    first, second = records(0, 1), records(2, 3)
    answers = fetched(ORDERS, first + second[:-5], high_watermark=4), fetched(ORDERS, second, high_watermark=4)
    with OneBroker(*answers) as broker, Cluster(broker.bootstrap) as cluster:
        assert offsets_of(cluster.fetch(ORDERS, 0, 4)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "answer",
    [
        fetched(ORDERS, records(0, 1)[:-1], high_watermark=2),
        fetched(ORDERS, bytes(100), high_watermark=2),
        fetched(ORDERS, records(0, 1), high_watermark=9),
    ],
    ids=["no whole batch", "no batch length", "batches below the position"],
)
def test_malformed_records_are_reported_with_partition_and_offset(answer: Any):
    with (
        OneBroker(answer) as broker,
        Cluster(broker.bootstrap) as cluster,
        pytest.raises(BadAnswer, match=r"orders-0.* 5"),
    ):
        list(cluster.fetch(ORDERS, 5, 9))


@pytest.mark.parametrize("torn", [Torn(b"\0\0"), Torn(struct.pack(">i", 1000) + bytes(10)), CLOSE])
def test_a_connection_that_ends_within_a_frame_is_made_again(torn: Torn):
    with (
        OneBroker(torn, torn, fetched(ORDERS, records(0, 1), high_watermark=2)) as broker,
        Cluster(broker.bootstrap) as cluster,
    ):
        assert offsets_of(cluster.fetch(ORDERS, 0, 2)) == [0, 1]


def test_a_partition_that_is_missing_in_the_answer_is_asked_for_again():
    other = fetched(TopicPartition("orders", 1), high_watermark=5)
    with (
        OneBroker(other, fetched(ORDERS, records(0, 1), high_watermark=2)) as broker,
        Cluster(broker.bootstrap) as cluster,
    ):
        assert offsets_of(cluster.fetch(ORDERS, 0, 2)) == [0, 1]


@pytest.mark.parametrize("size_bytes", [-1, 0, 3, RESPONSE_BYTES_MAX + 1])
def test_a_frame_of_an_impossible_size_is_refused(size_bytes: int):
    frame = struct.pack(">i", size_bytes) + bytes(10)
    with OneBroker(frame) as broker, Cluster(broker.bootstrap) as cluster, pytest.raises(BadAnswer, match="bytes"):
        list(cluster.fetch(ORDERS, 0, 2))


def test_a_server_that_is_no_broker_is_reported_at_once():
    with (
        OneBroker(None, greeting=b"HTTP/1.1 400 Bad Request\r\n\r\n") as broker,
        Cluster(broker.bootstrap) as cluster,
        pytest.raises(BadAnswer, match="does not speak Kafka's protocol"),
    ):
        cluster.topics()


def test_a_broker_that_knows_only_old_versions_of_apiversions_is_asked_in_one():
    with OneBroker(None, versions={**VERSIONS, API_VERSIONS: (0, 2)}) as broker, Cluster(broker.bootstrap) as cluster:
        assert cluster.topics() == {"orders": 1}


def test_a_broker_that_is_too_old_is_reported_with_what_it_lacks():
    with (
        OneBroker(None, versions={**VERSIONS, FETCH: (4, 9)}) as broker,
        Cluster(broker.bootstrap) as cluster,
        pytest.raises(BadAnswer, match="no version of Fetch between 10 and 12"),
    ):
        list(cluster.fetch(ORDERS, 0, 2))


class TwoBrokers:
    """`orders-0` moves from the first to the second broker at its first fetch."""

    def __init__(self) -> None:
        self.leader, self.epoch = 1, 4
        self.brokers = {1: ScriptedBroker(lambda request: self._answer(1, request))}
        self.brokers[2] = ScriptedBroker(lambda request: self._answer(2, request))

    def __enter__(self) -> dict[int, ScriptedBroker]:
        return self.brokers

    def __exit__(self, *_: object) -> None:
        for broker in self.brokers.values():
            broker.stop()

    def _answer(self, node: int, request: Any) -> Any:
        if isinstance(request, MetadataRequest):
            return self._metadata()
        if isinstance(request, ListOffsetsRequest):
            return ListOffsetsResponse(
                topics=[
                    ListOffsetsResponseTopic(
                        name=topic.name,
                        partitions=[
                            ListOffsetsResponsePartition(partition_index=each.partition_index, offset=node)
                            for each in topic.partitions
                        ],
                    )
                    for topic in request.topics
                ]
            )
        if node == 1:
            self.leader, self.epoch = 2, 5
            return fetched(ORDERS, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if request.topics[0].partitions[0].current_leader_epoch != self.epoch:
            return fetched(ORDERS, error_code=ErrorCode.FENCED_LEADER_EPOCH)
        return fetched(ORDERS, records(0, 1), high_watermark=2)

    def _metadata(self) -> MetadataResponse:
        return metadata({ORDERS: self.leader, TopicPartition("orders", 1): 2}, self.brokers, self.epoch)


def test_a_range_follows_its_leader_to_another_broker():
    with TwoBrokers() as brokers, Cluster(brokers[1].bootstrap) as cluster:
        assert offsets_of(cluster.fetch(ORDERS, 0, 2)) == [0, 1]
        assert sum(isinstance(each, FetchRequest) for each in brokers[1].requests) == 1


def test_each_leader_is_asked_for_its_own_partitions():
    with TwoBrokers() as brokers, Cluster(brokers[1].bootstrap) as cluster:
        found = cluster.list_offsets({ORDERS: -1, TopicPartition("orders", 1): -1})
        assert [each.offset for each in found.values()] == [1, 2]


def test_the_cluster_is_found_again_when_the_bootstrap_broker_is_dead():
    with TwoBrokers() as brokers, Cluster(brokers[1].bootstrap) as cluster:
        cluster.topics()
        brokers[1].stop()
        assert cluster.topics() == {"orders": 2}


def test_a_broker_that_closes_each_connection_is_reported_after_the_deadline():
    with (
        OneBroker(CLOSE) as broker,
        Cluster(broker.bootstrap, deadline_s=0.1) as cluster,
        pytest.raises(GaveUp, match="the broker closed the connection"),
    ):
        list(cluster.fetch(ORDERS, 0, 2))


def test_a_broker_that_never_answers_is_reported_after_the_deadline(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fetching, "REQUEST_TIMEOUT_S", 0.05)
    with (
        OneBroker(Torn(b""), SILENCE) as broker,
        Cluster(broker.bootstrap, deadline_s=0.2) as cluster,
        pytest.raises(GaveUp, match=r"no data was transferred for 0.05 s"),
    ):
        list(cluster.fetch(ORDERS, 0, 2))
