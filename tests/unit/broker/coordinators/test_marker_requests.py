"""Markers in a request to another broker: what is sent, and which of them the response speaks of."""

from __future__ import annotations

import asyncio

from flowstone.broker.coordinators.marker_requests import MarkerJob, MarkersInFlight, QueuedMarker
from flowstone.coordinator.transactions.messages import V2, SendMarkers
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    WriteTxnMarkersResponse,
    WriteTxnMarkersResponseMarker,
    WriteTxnMarkersResponsePartition,
    WriteTxnMarkersResponseTopic,
)

NONE, NOT_LEADER, UNKNOWN = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_SERVER_ERROR


def markers(transactional_id: str, producer_id: int, *places: TopicPartition) -> list[QueuedMarker]:
    task = SendMarkers(transactional_id, producer_id, 3, 5, False, V2, places)
    job = MarkerJob(None, task, len(places))  # type: ignore[arg-type]
    return [QueuedMarker(job, each) for each in places]


def answer(producer_id: int, codes: dict[TopicPartition, ErrorCode]) -> WriteTxnMarkersResponseMarker:
    topics = [
        WriteTxnMarkersResponseTopic(
            name=where.topic,
            partitions=[WriteTxnMarkersResponsePartition(partition_index=where.partition, error_code=code)],
        )
        for where, code in codes.items()
    ]
    return WriteTxnMarkersResponseMarker(producer_id=producer_id, topics=topics)


A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_a_request_names_each_transaction_once_with_its_partitions_by_topic():
    request = MarkersInFlight([*markers("x", 1, A0, B0, A1), *markers("y", 2, A0)]).request()
    assert [
        (each.producer_id, each.producer_epoch, each.coordinator_epoch, each.transaction_result)
        for each in request.markers
    ] == [(1, 3, 5, False), (2, 3, 5, False)]
    assert [(topic.name, topic.partition_indexes) for topic in request.markers[0].topics] == [("a", [0, 1]), ("b", [0])]


def test_a_partition_that_the_response_leaves_out_has_an_unknown_outcome():
    first, second = markers("x", 1, A0, A1)
    response = WriteTxnMarkersResponse(markers=[answer(1, {A0: NOT_LEADER})])
    assert MarkersInFlight([first, second]).codes(response) == {first: NOT_LEADER, second: UNKNOWN}


def test_the_response_says_nothing_of_a_marker_that_was_taken_out():
    first, second = markers("x", 1, A0, A1)
    in_flight = MarkersInFlight([first, second])
    in_flight.take_out([first])
    response = WriteTxnMarkersResponse(markers=[answer(1, {A0: NOT_LEADER, A1: NONE})])
    assert (in_flight.missing, in_flight.codes(response)) == ([second], {second: NONE})


def test_a_request_is_given_up_with_its_last_marker():
    async def scenario() -> None:
        first, second = markers("x", 1, A0, A1)
        in_flight = MarkersInFlight([first, second])
        asking: asyncio.Future[WriteTxnMarkersResponse] = asyncio.get_running_loop().create_future()
        in_flight.sent(asking)
        in_flight.take_out([first])
        assert not asking.cancelled()
        in_flight.take_out([])
        assert not in_flight.is_given_up
        in_flight.take_out([second])
        assert in_flight.is_given_up
        assert asking.cancelled()

    asyncio.run(scenario())
