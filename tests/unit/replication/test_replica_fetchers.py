"""Followers that fetch from real leaders, over a simulated network."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from flowstone.client.errors import ClientError
from flowstone.client.peer import Peer
from flowstone.config import LONG_MAX, TopicConfig
from tests.support.replicated_topic import TOPIC, ReplicatedTopic, eventually, run
from tests.support.wire_client import batch_of


def same_logs(topic: ReplicatedTopic, *node_ids: int, index: int = 0) -> bool:
    first, *others = (topic.brokers[node_id].stored(index) for node_id in node_ids)
    return all(each == first for each in others)


@pytest.mark.parametrize("flush_messages", [1, LONG_MAX])
def test_what_a_leader_appends_is_committed_once_its_followers_have_it(tmp_path: Path, flush_messages: int):
    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2, 3)
        for number in range(20):
            await topic.brokers[1].committed(batch_of(b"%d" % number))
        assert same_logs(topic, 1, 2, 3)
        assert topic.brokers[1].stored()

    run(ReplicatedTopic(tmp_path, config=TopicConfig(flush_messages=flush_messages)), scenario)


def test_bytes_that_are_fetched_from_leaders_are_counted(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2)
        for index in range(2):
            for number in range(3):
                await topic.brokers[1].committed(batch_of(b"%d" % number), index)
        stored = sum(topic.brokers[2].partition(index).log.segments[0].size_bytes for index in range(2))
        assert topic.brokers[2].fetchers.counts.fetched_bytes == stored > 0
        assert topic.brokers[1].fetchers.counts.fetched_bytes == 0

    run(ReplicatedTopic(tmp_path, partitions=2), scenario)


def test_followers_hear_of_the_high_watermark(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2)
        await topic.brokers[1].committed(batch_of(b"a", b"b"))
        await eventually(lambda: topic.brokers[2].partition().high_watermark.offset == 2)

    run(ReplicatedTopic(tmp_path), scenario)


def test_many_partitions_come_over_one_connection(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2)
        for index in range(0, 200, 7):
            await topic.brokers[1].committed(batch_of(b"%d" % index), index)
        assert all(same_logs(topic, 1, 2, index=index) for index in range(200))
        assert topic.brokers[1].server.connection_count == 1

    run(ReplicatedTopic(tmp_path, partitions=200), scenario)


def test_a_restarted_follower_catches_up(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2)
        topic.network.separate(["host-1"], ["host-2"])
        big = batch_of(bytes(200_000))
        for _ in range(40):
            topic.brokers[1].append(big)
        topic.network.heal()
        await eventually(lambda: topic.brokers[1].partition().high_watermark.offset == 40)
        assert same_logs(topic, 1, 2)

    run(ReplicatedTopic(tmp_path), scenario)


def test_a_deposed_leader_drops_what_the_new_one_does_not_have(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2)
        await topic.brokers[1].committed(batch_of(b"kept"))
        topic.network.separate(["host-1"], ["host-2"])
        topic.brokers[1].append(batch_of(b"lost"))
        topic.brokers[1].append(batch_of(b"lost too"))
        await topic.decide(leader=2, isr=[2], heard_by=[2])
        topic.brokers[2].append(batch_of(b"new"))
        state = await topic.decide(leader=2, isr=[2])
        topic.network.heal()
        await eventually(lambda: topic.brokers[1].partition().log.log_end_offset == 2)
        assert state.leader_epoch == topic.brokers[1].partition().leader_epoch
        assert same_logs(topic, 1, 2)
        assert topic.brokers[1].fetchers.counts.truncations > 0

    run(ReplicatedTopic(tmp_path), scenario)


def test_a_follower_that_is_behind_the_leaders_start_starts_over_there(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        topic.network.separate(["host-1"], ["host-2"])
        await topic.start(1, 2)
        await topic.decide(leader=1, isr=[1])
        for number in range(6):
            await topic.brokers[1].committed(batch_of(b"%d" % number))
        await topic.brokers[1].logs.delete_records_before(topic.brokers[1].partition().log, 4)
        topic.network.heal()
        follower = topic.brokers[2].partition()
        await eventually(lambda: follower.log.log_end_offset == 6)
        assert follower.log.log_start_offset == 4
        assert topic.brokers[2].fetchers.counts.restarts == 1

    run(ReplicatedTopic(tmp_path), scenario)


def test_a_follower_waits_for_a_leader_that_has_not_heard_of_its_part(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2)
        await topic.decide(leader=2, isr=[1, 2], heard_by=[1])
        state = topic.metadata.image.topics[TOPIC].partitions[0]
        topic.brokers[2].take_up(0, state, TopicConfig())
        await topic.brokers[2].committed(batch_of(b"a"))
        assert same_logs(topic, 1, 2)

    run(ReplicatedTopic(tmp_path), scenario)


def test_a_leader_that_comes_back_is_found_again(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2)
        await topic.brokers[1].committed(batch_of(b"a"))
        for connection in tuple(topic.brokers[1].server._connections):
            connection.close()
        await topic.brokers[1].committed(batch_of(b"b"))
        assert topic.brokers[2].fetchers.counts.disconnections == 1

    run(ReplicatedTopic(tmp_path), scenario)


def test_a_partition_that_comes_to_a_leader_does_not_wait_for_a_fetch_that_is_parked_there(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2)
        await topic.decide(leader=2, index=1)
        await topic.brokers[1].committed(batch_of(b"a"))
        await eventually(lambda: len(topic.brokers[1].services.waiting.fetches) == 1)
        await topic.decide(leader=1, index=1)
        await topic.brokers[1].committed(batch_of(b"b"), index=1)
        assert len(topic.brokers[1].services.fetch_sessions) == 1  # the new one is in the place of the old
        assert topic.brokers[2].fetchers.counts.disconnections == 0

    run(ReplicatedTopic(tmp_path, partitions=2, replica_fetch_wait_max_ms="20000"), scenario)


def test_a_broker_that_follows_nothing_has_no_connection(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2)
        await topic.brokers[1].committed(batch_of(b"a"))
        topic.brokers[2].fetchers.unfollow(topic.brokers[2].partition())
        await eventually(lambda: topic.brokers[1].server.connection_count == 0)

    run(ReplicatedTopic(tmp_path), scenario)


def test_a_follower_out_of_sync_is_held_to_its_rate(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2)
        await topic.decide(leader=1, isr=[1])
        for _ in range(3):
            topic.brokers[1].append(batch_of(bytes(900_000)))
        follower = topic.brokers[2].partition()
        await eventually(lambda: follower.log.log_end_offset == 1)
        await topic.brokers[2].services.clock.sleep(0.2)
        assert follower.log.log_end_offset == 1
        topic.brokers[2].fetchers.throttle_to(LONG_MAX)

    run(ReplicatedTopic(tmp_path, follower_replication_throttled_rate="1000000"), scenario)


def test_a_damaged_answer_is_not_stored_and_asked_for_again(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        topic.network.separate(["host-1"], ["host-2"])
        await topic.start(1, 2)
        topic.brokers[1].append(batch_of(b"intact"))
        await eventually(lambda: topic.brokers[1].partition().local.position.offset == 1)
        path = Path(topic.brokers[1].partition().log.path) / "00000000000000000000.log"
        intact = path.read_bytes()
        path.write_bytes(intact[:-1] + bytes([intact[-1] ^ 1]))
        topic.network.heal()
        follower = topic.brokers[2].partition()
        await eventually(lambda: follower.following.refused_answers > 0)
        assert follower.log.log_end_offset == 0
        path.write_bytes(intact)
        await eventually(lambda: follower.log.log_end_offset == 1)

    run(ReplicatedTopic(tmp_path), scenario)


def test_a_follower_keeps_what_its_leader_has_and_drops_what_its_leader_has_deleted(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2)
        leader, follower = (topic.brokers[node_id] for node_id in (1, 2))
        for number in range(20):
            await leader.committed(batch_of(b"%d" % number + bytes(100)))
        await eventually(lambda: follower.partition().high_watermark.offset == 20)
        await follower.logs.directories[0].housekeeping.apply_retention()
        assert follower.partition().log.log_start_offset == 0
        await leader.logs.directories[0].housekeeping.apply_retention()
        start_offset = leader.partition().log.log_start_offset
        assert start_offset > 0
        await leader.committed(batch_of(b"more"))
        await eventually(lambda: follower.partition().log.log_start_offset == start_offset)
        await follower.logs.directories[0].housekeeping.apply_retention()
        assert follower.partition().log.segments[0].base_offset == start_offset

    run(ReplicatedTopic(tmp_path, config=TopicConfig(segment_bytes=500, retention_bytes=1000)), scenario)


@pytest.mark.parametrize("is_interrupted", [True, False])
def test_a_follower_whose_connection_was_closed_asks_for_a_new_session(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_interrupted: bool
) -> None:
    """The leader may have handled a request whose response was lost: it would refuse the next one of that session."""
    caplog.set_level(logging.INFO)

    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2)
        (fetcher,) = topic.brokers[2].fetchers._fetchers.values()
        for number in range(3):
            await topic.brokers[1].committed(batch_of(b"%d" % number))
            await eventually(lambda: fetcher._is_asking)
            peer = fetcher._peer
            assert peer is not None
            fetcher.changed(is_urgent=True) if is_interrupted else peer.close()
            await eventually(lambda peer=peer: fetcher._peer not in (None, peer))  # type: ignore[misc]

    run(ReplicatedTopic(tmp_path), scenario)
    assert "FETCH_SESSION" not in caplog.text


def test_a_partition_may_be_given_up_after_the_fetchers_are_closed(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2)
        follower = topic.brokers[2]
        follower.fetchers.close()
        follower.fetchers.unfollow(follower.partition())

    run(ReplicatedTopic(tmp_path), scenario)


def test_a_leader_that_cannot_be_reached_is_told_once_until_it_has_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    connect, is_refused = Peer.connect, False

    async def connect_or_fail(*arguments: Any) -> Peer:
        if is_refused:
            raise ClientError("connection refused")
        return await connect(*arguments)

    monkeypatch.setattr(Peer, "connect", connect_or_fail)

    async def scenario(topic: ReplicatedTopic) -> None:
        nonlocal is_refused
        await topic.start(1, 2)
        counts = topic.brokers[2].fetchers.counts
        for times in (1, 2):
            await topic.brokers[1].committed(batch_of(b"a"))
            is_refused, lost = True, counts.disconnections
            for connection in tuple(topic.brokers[1].server._connections):
                connection.close()
            await eventually(lambda lost=lost: counts.disconnections >= lost + 3)  # type: ignore[misc]
            assert caplog.text.count("cannot fetch from its leader") == times
            is_refused = False

    run(ReplicatedTopic(tmp_path), scenario)
