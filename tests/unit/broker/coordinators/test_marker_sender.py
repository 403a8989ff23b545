"""End markers follow their partitions to new leaders, whatever a former leader still owes an answer to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from flowstone.broker.coordinators.local_markers import Marker
from flowstone.broker.coordinators.marker_sender import MarkerSender
from flowstone.client.errors import Disconnected
from flowstone.cluster.image.cluster_image import NO_LEADER, PartitionImage
from flowstone.cluster.image.records import PartitionChanged, PartitionsAdded, TopicCreated
from flowstone.cluster.logs.memory_log import MemoryLog
from flowstone.cluster.metadata import Metadata
from flowstone.coordinator.transactions.messages import V2, SendMarkers
from flowstone.errors import ErrorCode
from flowstone.ports.clock import SimulatedClock
from flowstone.promise import Promise
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
    WriteTxnMarkersResponseMarker,
    WriteTxnMarkersResponsePartition,
    WriteTxnMarkersResponseTopic,
)

ME, OTHER, THIRD = 1, 2, 3
TOPIC, TOPIC_ID = "t", bytes(range(16))
TURNS = 10


class Peers:
    """Connections to brokers that answer when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, WriteTxnMarkersRequest, asyncio.Future[WriteTxnMarkersResponse]]] = []

    async def ask(self, node_id: int, request: WriteTxnMarkersRequest, *_: object) -> WriteTxnMarkersResponse:
        answer: asyncio.Future[WriteTxnMarkersResponse] = asyncio.get_running_loop().create_future()
        self.asked.append((node_id, request, answer))
        return await answer

    def sent(self) -> list[tuple[int, list[int]]]:
        """The brokers that were asked, with the partitions that they were asked to write to."""
        return [(node_id, _partitions(request)) for node_id, request, _ in self.asked]

    def answer(self, number: int) -> None:
        _, request, answer = self.asked[number]
        answer.set_result(_written(request))


class Shard:
    """A shard that notes which markers it was told of."""

    def __init__(self) -> None:
        self.written: list[int] = []

    def execute(self, call: Callable[[Any, int], object]) -> None:
        call(self, 0)

    def markers_written(self, now_ms: int, task: SendMarkers, partitions: Sequence[TopicPartition]) -> None:
        self.written += [each.partition for each in partitions]


class LocalMarkers:
    def __init__(self) -> None:
        self.written: list[int] = []

    def write(self, where: TopicPartition, marker: Marker) -> Promise[None]:
        self.written.append(where.partition)
        written: Promise[None] = Promise()
        written.set_result(None)
        return written


class Bench:
    """A sender on broker 1, in a cluster whose topic has a partition for each of `leaders`."""

    def __init__(self) -> None:
        self.metadata, self.clock = Metadata(MemoryLog()), SimulatedClock()
        self.peers, self.local, self.shard = Peers(), LocalMarkers(), Shard()
        self.ended: list[str] = []
        self.sender = MarkerSender(
            ME,
            self.metadata,
            self.clock,
            self.local,  # type: ignore[arg-type]
            self.peers,  # type: ignore[arg-type]
            lambda shard, transactional_id: True,
            self.ended.append,
        )

    async def create(self, leaders: Sequence[int]) -> None:
        await self.metadata.append([TopicCreated(TOPIC, TOPIC_ID, tuple(map(_led_by, leaders)), {})])

    async def lead(self, partition: int, leader: int) -> None:
        await self.metadata.append([PartitionChanged(TOPIC_ID, partition, _led_by(leader, epoch=1))])
        await turns()

    async def end(self, transactional_id: str, partitions: Sequence[int], producer_id: int = 7) -> None:
        places = tuple(TopicPartition(TOPIC, each) for each in partitions)
        task = SendMarkers(transactional_id, producer_id, 0, 0, True, V2, places)
        self.sender.send(self.shard, task)  # type: ignore[arg-type]
        await turns()


def run(scenario: Callable[[Bench], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        bench = Bench()
        await scenario(bench)
        bench.sender.close()
        await turns()

    asyncio.run(main())


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def _led_by(leader: int, epoch: int = 0) -> PartitionImage:
    return PartitionImage(leader, epoch, epoch, (ME, OTHER, THIRD), (ME, OTHER, THIRD))


def _partitions(request: WriteTxnMarkersRequest) -> list[int]:
    return [index for marker in request.markers for topic in marker.topics for index in topic.partition_indexes]


def _written(request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[
            WriteTxnMarkersResponseMarker(
                producer_id=marker.producer_id,
                topics=[
                    WriteTxnMarkersResponseTopic(
                        name=topic.name,
                        partitions=[
                            WriteTxnMarkersResponsePartition(partition_index=index, error_code=ErrorCode.NONE)
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


def test_a_marker_that_a_former_leader_does_not_answer_goes_to_the_new_leader_at_once():
    async def scenario(bench: Bench) -> None:
        await bench.create([OTHER])
        await bench.end("id", [0])
        await bench.lead(0, THIRD)
        assert bench.peers.sent() == [(OTHER, [0]), (THIRD, [0])]
        assert bench.peers.asked[0][2].cancelled()
        bench.peers.answer(1)
        await turns()
        assert (bench.shard.written, bench.ended) == ([0], ["id"])

    run(scenario)


def test_a_marker_is_written_here_once_this_broker_leads():
    async def scenario(bench: Bench) -> None:
        await bench.create([OTHER])
        await bench.end("id", [0])
        await bench.lead(0, ME)
        assert (bench.local.written, bench.shard.written, bench.ended) == ([0], [0], ["id"])

    run(scenario)


def test_the_other_markers_of_the_request_keep_waiting_for_its_response():
    async def scenario(bench: Bench) -> None:
        await bench.create([OTHER, OTHER])
        await bench.end("id", [0, 1])
        await bench.lead(0, THIRD)
        assert bench.peers.sent() == [(OTHER, [0, 1]), (THIRD, [0])]
        bench.peers.answer(0)
        await turns()
        assert (bench.shard.written, bench.ended) == ([1], [])  # not of the partition that has moved
        bench.peers.answer(1)
        await turns()
        assert (bench.shard.written, bench.ended) == ([1, 0], ["id"])

    run(scenario)


def test_markers_queued_behind_an_unanswered_request_follow_their_partitions_too():
    async def scenario(bench: Bench) -> None:
        await bench.create([OTHER, OTHER, OTHER])
        await bench.end("first", [0])
        await bench.end("second", [1, 2], producer_id=8)
        await bench.lead(1, THIRD)
        assert bench.peers.sent() == [(OTHER, [0]), (THIRD, [1])]
        bench.peers.answer(0)
        await turns()
        assert bench.peers.sent()[2:] == [(OTHER, [2])]

    run(scenario)


def test_after_a_request_was_given_up_the_former_leader_gets_the_markers_of_other_partitions():
    async def scenario(bench: Bench) -> None:
        await bench.create([OTHER, OTHER])
        await bench.end("first", [0])
        await bench.end("second", [1], producer_id=8)
        await bench.lead(0, THIRD)
        assert bench.peers.sent() == [(OTHER, [0]), (THIRD, [0]), (OTHER, [1])]

    run(scenario)


def test_a_partition_without_a_leader_is_looked_at_again_until_it_has_one():
    async def scenario(bench: Bench) -> None:
        await bench.create([OTHER])
        await bench.end("id", [0])
        await bench.lead(0, NO_LEADER)
        await bench.metadata.append([PartitionChanged(TOPIC_ID, 0, _led_by(THIRD, epoch=2))])
        bench.clock.advance(0.2)
        await turns()
        assert bench.peers.sent() == [(OTHER, [0]), (THIRD, [0])]

    run(scenario)


def test_a_change_of_the_in_sync_replicas_leaves_requests_alone():
    async def scenario(bench: Bench) -> None:
        await bench.create([OTHER])
        await bench.end("id", [0])
        await bench.lead(0, OTHER)
        assert bench.peers.sent() == [(OTHER, [0])]
        assert not bench.peers.asked[0][2].done()

    run(scenario)


def test_a_partition_that_is_added_and_moved_at_once_disturbs_no_others(caplog: pytest.LogCaptureFixture):
    async def scenario(bench: Bench) -> None:
        await bench.create([OTHER])
        await bench.end("id", [0])
        added = PartitionsAdded(TOPIC_ID, (_led_by(OTHER),))
        moves = [PartitionChanged(TOPIC_ID, index, _led_by(THIRD, epoch=1)) for index in (1, 0)]
        await bench.metadata.append([added, *moves])
        await turns()
        assert bench.peers.sent() == [(OTHER, [0]), (THIRD, [0])]

    run(scenario)
    assert not caplog.records


def test_a_broken_connection_sends_the_markers_again_after_a_pause():
    async def scenario(bench: Bench) -> None:
        await bench.create([OTHER])
        await bench.end("id", [0])
        bench.peers.asked[0][2].set_exception(Disconnected("gone"))
        await turns()
        assert len(bench.peers.asked) == 1
        bench.clock.advance(0.2)
        await turns()
        assert bench.peers.sent() == [(OTHER, [0]), (OTHER, [0])]

    run(scenario)


def test_a_sender_that_is_closed_leaves_no_request_behind():
    async def scenario(bench: Bench) -> None:
        await bench.create([OTHER])
        await bench.end("id", [0])
        bench.sender.close()
        await turns()
        assert bench.peers.asked[0][2].cancelled()

    run(scenario)


def test_the_markers_of_decided_transactions_are_routed_together_after_their_responses():
    async def scenario(bench: Bench) -> None:
        await bench.create([ME, OTHER])
        for transactional_id, partition in (("first", 0), ("second", 1)):
            where = (TopicPartition(TOPIC, partition),)
            bench.sender.send(bench.shard, SendMarkers(transactional_id, 7, 0, 0, True, V2, where))  # type: ignore[arg-type]
        assert (bench.local.written, bench.peers.sent()) == ([], [])
        await turns()
        assert (bench.local.written, bench.peers.sent()) == ([0], [(OTHER, [1])])

    run(scenario)


def test_a_sender_that_is_closed_before_it_has_routed_markers_writes_none():
    async def scenario(bench: Bench) -> None:
        await bench.create([ME])
        where = (TopicPartition(TOPIC, 0),)
        bench.sender.send(bench.shard, SendMarkers("id", 7, 0, 0, True, V2, where))  # type: ignore[arg-type]
        bench.sender.close()
        await turns()
        assert bench.local.written == []

    run(scenario)
