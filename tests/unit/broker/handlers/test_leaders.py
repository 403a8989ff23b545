"""Produce, Fetch, ListOffsets and the others where another broker leads, and where a follower asks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from flowstone.client.peer import Peer
from flowstone.config.cluster import RACK_AWARE_REPLICA_SELECTOR
from flowstone.errors import ErrorCode
from flowstone.types import ZERO_UUID
from flowstone.wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsRequestTopic,
    DeleteRecordsResponse,
    FetchRequest,
    FetchRequestPartition,
    FetchRequestReplicaState,
    FetchRequestTopic,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestPartition,
    OffsetForLeaderEpochRequestTopic,
    OffsetForLeaderEpochResponse,
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
)
from tests.support.replicated_topic import EPOCH_BASE, TOPIC, TOPIC_ID, ReplicatedTopic, eventually, run
from tests.support.wire_client import batch_of

TIMEOUT_S = 10.0
LATEST, EARLIEST = -1, -2


async def produce(peer: Peer, acks: int = -1, index: int = 0, topic_id: bytes = TOPIC_ID) -> ProduceResponse:
    data = [ProduceRequestPartition(index=index, records=batch_of(b"v"))]
    topics = [ProduceRequestTopic(topic_id=topic_id, partition_data=data)]
    request = ProduceRequest(acks=acks, timeout_ms=5000, topic_data=topics)
    return await peer.ask(request, ProduceResponse, TIMEOUT_S)


def fetch_of(offset: int, *, max_wait_ms: int = 0, index: int = 0, **more: Any) -> FetchRequest:
    epochs = {name: more.pop(name) for name in ("current_leader_epoch", "last_fetched_epoch") if name in more}
    partition = FetchRequestPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20, **epochs)
    topics = [FetchRequestTopic(topic_id=TOPIC_ID, partitions=[partition])]
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, topics=topics, **{"session_epoch": -1} | more)


async def fetch(peer: Peer, offset: int, **more: Any) -> Any:
    """The response, and its first partition."""
    response = await peer.ask(fetch_of(offset, **more), FetchResponse, TIMEOUT_S)
    return response, response.responses[0].partitions[0]


def replica(node_id: int, epoch: int | None = None) -> FetchRequestReplicaState:
    return FetchRequestReplicaState(replica_id=node_id, replica_epoch=EPOCH_BASE + node_id if epoch is None else epoch)


async def list_offsets(peer: Peer, timestamp: int) -> Any:
    partition = ListOffsetsRequestPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsRequestTopic(name=TOPIC, partitions=[partition])])
    return (await peer.ask(request, ListOffsetsResponse, TIMEOUT_S)).topics[0].partitions[0]


@pytest.mark.parametrize("acks", [1, -1])
def test_a_produce_to_a_follower_is_told_who_leads_and_where(tmp_path: Path, acks: int):
    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2)
        response = await produce(await topic.brokers[2].connect(), acks)
        refused = response.responses[0].partition_responses[0]
        assert (refused.error_code, refused.base_offset) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        assert refused.current_leader is not None
        assert (refused.current_leader.leader_id, refused.current_leader.leader_epoch) == (1, 1)
        assert [(each.node_id, each.host, each.port) for each in response.node_endpoints] == [(1, "host-1", 9092)]

    run(ReplicatedTopic(tmp_path), scenario)


def test_a_produce_to_a_broker_without_a_replica_is_told_who_leads(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2)
        topic.brokers[2].partitions.remove(topic.brokers[2].partition().topic_partition, ErrorCode.NONE)
        peer = await topic.brokers[2].connect()
        response = await produce(peer)
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert [each.node_id for each in response.node_endpoints] == [1]
        for index, topic_id in ((5, TOPIC_ID), (0, ZERO_UUID)):
            unknown = (await produce(peer, index=index, topic_id=topic_id)).responses[0].partition_responses[0]
            assert unknown.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
            assert unknown.current_leader is None

    run(ReplicatedTopic(tmp_path), scenario)


def test_a_produce_whose_leader_is_deposed_before_it_is_committed_hears_of_the_new_one(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        topic.network.separate(["host-1"], ["host-2"])
        await topic.start(1, 2)
        asked = asyncio.ensure_future(produce(await topic.brokers[1].connect()))
        await eventually(lambda: topic.brokers[1].partition().log.log_end_offset == 1)
        await topic.decide(leader=2)
        response = await asked
        refused = response.responses[0].partition_responses[0]
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert refused.current_leader is not None
        assert (refused.current_leader.leader_id, refused.current_leader.leader_epoch) == (2, 2)

    run(ReplicatedTopic(tmp_path), scenario)


def test_an_acks_all_produce_is_answered_once_followers_have_it(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2, 3)
        response = await produce(await topic.brokers[1].connect())
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        assert len({topic.brokers[node_id].stored() for node_id in (1, 2, 3)}) == 1

    run(ReplicatedTopic(tmp_path), scenario)


def test_consumers_read_from_a_follower_what_it_knows_to_be_committed(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2)
        await topic.brokers[1].committed(batch_of(b"a"))
        follower = topic.brokers[2].partition()
        await eventually(lambda: follower.high_watermark.offset == 1)
        peer = await topic.brokers[2].connect()
        _, found = await fetch(peer, 0)
        assert (found.error_code, found.high_watermark, bytes(found.records)) == (0, 1, topic.brokers[1].stored())
        _, at_end = await fetch(peer, 1)
        assert (at_end.error_code, bytes(at_end.records)) == (0, b"")
        _, beyond = await fetch(peer, 9)
        assert beyond.error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    run(ReplicatedTopic(tmp_path), scenario)


def test_what_a_follower_has_and_does_not_know_to_be_committed_is_not_available_yet(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        topic.network.separate(["host-1", "host-2"], ["host-3"])
        await topic.start(1, 2, 3)
        topic.brokers[1].append(batch_of(b"a", b"b"))
        follower = topic.brokers[2].partition()
        await eventually(lambda: follower.log.log_end_offset == 2)
        _, early = await fetch(await topic.brokers[2].connect(), 1)
        assert early.error_code == ErrorCode.OFFSET_NOT_AVAILABLE

    run(ReplicatedTopic(tmp_path), scenario)


def test_a_consumer_parked_at_a_follower_is_answered_when_the_high_watermark_comes(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2)
        peer = await topic.brokers[2].connect()
        asked = asyncio.ensure_future(fetch(peer, 0, max_wait_ms=5000))
        await topic.brokers[1].committed(batch_of(b"a"))
        _, found = await asked
        assert len(found.records) > 0

    run(ReplicatedTopic(tmp_path), scenario)


def test_a_client_with_an_old_leader_epoch_is_told_the_new_one(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2)
        await topic.decide(leader=2)
        peer = await topic.brokers[2].connect()
        response, fenced = await fetch(peer, 0, current_leader_epoch=1)
        assert fenced.error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert (fenced.current_leader.leader_id, fenced.current_leader.leader_epoch) == (2, 2)
        assert [each.node_id for each in response.node_endpoints] == [2]
        _, unknown = await fetch(peer, 0, current_leader_epoch=9)
        assert unknown.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH

    run(ReplicatedTopic(tmp_path), scenario)


def test_questions_for_leaders_are_not_answered_by_followers(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2)
        peer = await topic.brokers[2].connect()
        assert (await list_offsets(peer, EARLIEST)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        cut = DeleteRecordsRequestTopic(
            name=TOPIC, partitions=[DeleteRecordsRequestPartition(partition_index=0, offset=0)]
        )
        deleted = await peer.ask(DeleteRecordsRequest(topics=[cut]), DeleteRecordsResponse, TIMEOUT_S)
        assert deleted.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        epoch = OffsetForLeaderEpochRequestTopic(
            topic=TOPIC, partitions=[OffsetForLeaderEpochRequestPartition(partition=0, leader_epoch=1)]
        )
        ended = await peer.ask(OffsetForLeaderEpochRequest(topics=[epoch]), OffsetForLeaderEpochResponse, TIMEOUT_S)
        assert ended.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(ReplicatedTopic(tmp_path), scenario)


def test_a_new_leader_does_not_say_where_the_end_is_before_it_knows(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2)
        await topic.brokers[1].committed(batch_of(b"a"))
        topic.network.separate(["host-1"], ["host-2"])
        await topic.decide(leader=2, isr=[1, 2])  # who was told of no high watermark above 0 yet
        assert topic.brokers[2].partition().high_watermark.offset == 0
        peer = await topic.brokers[2].connect()
        assert (await list_offsets(peer, LATEST)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        assert (await list_offsets(peer, EARLIEST)).offset == 0
        topic.network.heal()
        await eventually(lambda: topic.brokers[2].partition().high_watermark.offset == 1)
        assert (await list_offsets(peer, LATEST)).offset == 1

    run(ReplicatedTopic(tmp_path), scenario)


def test_a_follower_reads_to_the_logs_end(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        topic.network.separate(["host-1"], ["host-2"])
        await topic.start(1, 2)
        topic.brokers[1].append(batch_of(b"a"))
        peer = await topic.brokers[1].connect()
        _, found = await fetch(peer, 0, replica_state=replica(2), current_leader_epoch=1)
        assert (found.error_code, found.high_watermark) == (0, 0)
        assert bytes(found.records) == topic.brokers[1].stored()
        await eventually(lambda: topic.brokers[1].partition().local.position.offset == 1)
        await fetch(peer, 1, replica_state=replica(2), current_leader_epoch=1, last_fetched_epoch=1)
        assert topic.brokers[1].partition().high_watermark.offset == 1  # where it fetches from is what it has

    run(ReplicatedTopic(tmp_path), scenario)


@pytest.mark.parametrize("session_epoch", [-1, 0])
def test_a_parked_follower_is_answered_when_the_log_grows(tmp_path: Path, session_epoch: int):
    async def scenario(topic: ReplicatedTopic) -> None:
        topic.network.separate(["host-1"], ["host-2"])
        await topic.start(1, 2)
        peer = await topic.brokers[1].connect()
        asked = asyncio.ensure_future(
            fetch(
                peer, 0, replica_state=replica(2), current_leader_epoch=1, max_wait_ms=5000, session_epoch=session_epoch
            )
        )
        await eventually(lambda: len(topic.brokers[1].services.waiting.fetches) == 1)
        topic.brokers[1].append(batch_of(b"a"))
        _, found = await asked
        assert bytes(found.records) == topic.brokers[1].stored()

    run(ReplicatedTopic(tmp_path), scenario)


@pytest.mark.parametrize("max_wait_ms", [0, 100])
def test_a_follower_that_names_its_partition_again_hears_of_the_high_watermark_again(tmp_path: Path, max_wait_ms: int):
    """It may have taken up a decision while the first answer was on its way, and dropped that answer."""

    async def scenario(topic: ReplicatedTopic) -> None:
        topic.network.separate(["host-1"], ["host-2"])
        await topic.start(1, 2)
        topic.brokers[1].append(batch_of(b"a"))
        await eventually(lambda: topic.brokers[1].partition().local.position.offset == 1)
        peer = await topic.brokers[1].connect()
        follower = {"replica_state": replica(2), "current_leader_epoch": 1, "last_fetched_epoch": 1}
        opened, found = await fetch(peer, 1, session_epoch=0, **follower)
        assert found.high_watermark == 1
        session = {"session_id": opened.session_id, "max_wait_ms": max_wait_ms}
        _, again = await fetch(peer, 1, session_epoch=1, **session, **follower)
        assert again.high_watermark == 1
        idle = FetchRequest(replica_state=replica(2), min_bytes=1, session_epoch=2, **session)
        assert not (await peer.ask(idle, FetchResponse, TIMEOUT_S)).responses

    run(ReplicatedTopic(tmp_path), scenario)


def test_a_follower_whose_log_is_another_hears_where_they_part_ways(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        topic.network.separate(["host-1"], ["host-2"])
        await topic.start(1, 2)
        topic.brokers[1].append(batch_of(b"a"))
        peer = await topic.brokers[1].connect()
        _, parted = await fetch(
            peer, 5, replica_state=replica(2), current_leader_epoch=1, last_fetched_epoch=1, max_wait_ms=5000
        )
        assert (parted.diverging_epoch.epoch, parted.diverging_epoch.end_offset) == (1, 1)
        assert bytes(parted.records) == b""

    run(ReplicatedTopic(tmp_path), scenario)


@pytest.mark.parametrize(
    "state",
    [replica(2, 7), replica(2, -1), replica(9)],
    ids=["another life", "no epoch", "unknown broker"],
)
def test_who_is_not_a_broker_in_its_present_life_is_no_follower(tmp_path: Path, state: FetchRequestReplicaState):
    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2)
        await topic.brokers[1].committed(batch_of(b"a"))
        peer = await topic.brokers[1].connect()
        response, refused = await fetch(peer, 0, replica_state=state, current_leader_epoch=1, session_epoch=0)
        assert (refused.error_code, bytes(refused.records)) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, b"")
        assert response.session_id == 0
        idle = FetchRequest(replica_state=state, session_id=1, session_epoch=1)
        gone = await peer.ask(idle, FetchResponse, TIMEOUT_S)
        assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    run(ReplicatedTopic(tmp_path), scenario)


def test_a_consumer_may_say_that_it_is_no_replica(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2)
        await topic.brokers[1].committed(batch_of(b"a"))
        _, found = await fetch(await topic.brokers[1].connect(), 0, replica_state=replica(-1, -1))
        assert (found.error_code, len(found.records) > 0) == (ErrorCode.NONE, True)

    run(ReplicatedTopic(tmp_path), scenario)


def test_a_broker_without_a_replica_is_no_follower(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2)
        _, refused = await fetch(await topic.brokers[1].connect(), 0, replica_state=replica(1), current_leader_epoch=1)
        assert refused.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH

    run(ReplicatedTopic(tmp_path), scenario)


def test_a_consumer_is_sent_to_the_replica_in_its_rack(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2)
        await topic.brokers[1].committed(batch_of(b"a"))
        leader, follower = await topic.brokers[1].connect(), await topic.brokers[2].connect()
        _, sent = await fetch(leader, 0, rack_id="rack-2", max_wait_ms=5000)
        assert (sent.preferred_read_replica, bytes(sent.records)) == (2, b"")
        for near, rack in ((leader, "rack-1"), (leader, "rack-9"), (leader, ""), (follower, "rack-2")):
            await eventually(lambda: topic.brokers[2].partition().high_watermark.offset == 1)
            _, found = await fetch(near, 0, rack_id=rack)
            assert (found.preferred_read_replica, len(found.records) > 0) == (-1, True)

    run(ReplicatedTopic(tmp_path, racks=True, replica_selector_class=RACK_AWARE_REPLICA_SELECTOR), scenario)


def test_where_consumers_read_from_followers_these_hear_of_commits_at_once(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2, 3)
        peer = await topic.brokers[2].connect()
        for offset in range(3):
            asked = asyncio.ensure_future(fetch(peer, offset, max_wait_ms=5000))
            await topic.brokers[1].committed(batch_of(b"v"))
            _, found = await asked
            assert len(found.records) > 0

    settings = {"replica_selector_class": RACK_AWARE_REPLICA_SELECTOR, "replica_fetch_wait_max_ms": "20000"}
    run(ReplicatedTopic(tmp_path, racks=True, **settings), scenario)


def test_a_leader_holds_followers_that_catch_up_to_its_rate_and_no_others(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        topic.network.separate(["host-1"], ["host-2"])
        await topic.start(1, 2)
        await topic.decide(leader=1, isr=[1])
        for _ in range(2):
            topic.brokers[1].append(batch_of(bytes(100_000)))
        peer = await topic.brokers[1].connect()
        for more, is_held_back in ((False, False), (True, True)):
            _, found = await fetch(peer, int(more), replica_state=replica(2), current_leader_epoch=1)
            assert (not found.records) == is_held_back
        await topic.decide(leader=1, isr=[1, 2])
        _, found = await fetch(peer, 1, replica_state=replica(2), current_leader_epoch=1)
        assert len(found.records) > 0

    run(ReplicatedTopic(tmp_path, leader_replication_throttled_rate="1000"), scenario)


def test_a_replica_that_is_not_in_sync_gets_no_consumers(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        topic.network.separate(["host-1"], ["host-2"])
        await topic.start(1, 2)
        await topic.decide(leader=1, isr=[1])
        await topic.brokers[1].committed(batch_of(b"a"))
        _, found = await fetch(await topic.brokers[1].connect(), 0, rack_id="rack-2")
        assert (found.preferred_read_replica, len(found.records) > 0) == (-1, True)

    run(ReplicatedTopic(tmp_path, racks=True, replica_selector_class=RACK_AWARE_REPLICA_SELECTOR), scenario)


def test_without_a_selector_racks_make_no_difference(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2)
        await topic.brokers[1].committed(batch_of(b"a"))
        _, found = await fetch(await topic.brokers[1].connect(), 0, rack_id="rack-2")
        assert found.preferred_read_replica == -1

    run(ReplicatedTopic(tmp_path, racks=True), scenario)


def test_a_leader_without_a_lease_sends_nobody_back_to_the_start(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2)
        await topic.brokers[1].committed(batch_of(b"a"))
        peer = await topic.brokers[1].connect()
        _, found = await fetch(peer, 5)
        assert found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        topic.brokers[1].lease.end()
        _, found = await fetch(peer, 5)
        assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(ReplicatedTopic(tmp_path), scenario)
