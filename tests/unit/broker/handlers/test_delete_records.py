"""DeleteRecords where there are followers: answered when they have deleted, too."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from flowstone.broker.clustering import log_starts
from flowstone.cluster.image.records import BrokerFenced
from flowstone.errors import ErrorCode, StorageFault
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
)
from tests.support.replicated_topic import EPOCH_BASE, TOPIC, TOPIC_ID, ReplicatedTopic, eventually, run
from tests.support.wire_client import batch_of

TIMEOUT_S = 10.0
SOON_MS, LATER_MS = 50, 8000
# Followers that have nothing to fetch wait for longer than the tests do: they have to be woken.
LONG_WAITS = {"replica_fetch_wait_max_ms": "20000"}


async def delete(topic: ReplicatedTopic, offset: int, timeout_ms: int = LATER_MS) -> tuple[ErrorCode, int]:
    """The answer to a request to the leader, which is broker 1."""
    asked = DeleteRecordsRequestTopic(
        name=TOPIC, partitions=[DeleteRecordsRequestPartition(partition_index=0, offset=offset)]
    )
    peer = await topic.brokers[1].connect()
    request = DeleteRecordsRequest(topics=[asked], timeout_ms=timeout_ms)
    result = (await peer.ask(request, DeleteRecordsResponse, TIMEOUT_S)).topics[0].partitions[0]
    return ErrorCode(result.error_code), result.low_watermark


async def fill(topic: ReplicatedTopic, *node_ids: int) -> None:
    """Three records that every broker has."""
    await topic.start(*node_ids)
    for _ in range(3):
        await topic.brokers[1].committed(batch_of(b"v"))


async def waiting(topic: ReplicatedTopic, offset: int) -> asyncio.Task[Any]:
    """A request that is being waited for, its followers being cut off."""
    asked = asyncio.ensure_future(delete(topic, offset))
    await eventually(lambda: len(topic.brokers[1].services.log_starts) == 1)
    return asked


def log_start(topic: ReplicatedTopic, node_id: int) -> int:
    return topic.brokers[node_id].partition().log.log_start_offset


def test_the_answer_comes_when_all_replicas_have_deleted(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await fill(topic, 1, 2, 3)
        assert await delete(topic, 2) == (ErrorCode.NONE, 2)
        assert [log_start(topic, node_id) for node_id in (1, 2, 3)] == [2, 2, 2]
        assert not len(topic.brokers[1].services.log_starts)

    run(ReplicatedTopic(tmp_path, **LONG_WAITS), scenario)


def test_what_followers_have_deleted_before_is_not_waited_for(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await fill(topic, 1, 2)
        await delete(topic, 2)
        assert await delete(topic, 1, timeout_ms=0) == (ErrorCode.NONE, 2)

    run(ReplicatedTopic(tmp_path, **LONG_WAITS), scenario)


def test_records_that_followers_do_not_have_on_disk_yet_are_deleted_with_the_others(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await fill(topic, 1, 2)
        committed = asyncio.ensure_future(topic.brokers[1].committed(batch_of(b"v")))
        assert await delete(topic, 3) == (ErrorCode.NONE, 3)
        await committed
        assert await delete(topic, -1) == (ErrorCode.NONE, 4)

    run(ReplicatedTopic(tmp_path, **LONG_WAITS), scenario)


def test_a_follower_that_does_not_answer_in_time_is_told_as_a_timeout(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await fill(topic, 1, 2)
        topic.network.separate(["host-1"], ["host-2"])
        assert await delete(topic, 2, SOON_MS) == (ErrorCode.REQUEST_TIMED_OUT, 0)
        assert log_start(topic, 1) == 2, "the leader's are deleted all the same"

    run(ReplicatedTopic(tmp_path), scenario)


def test_a_dead_follower_is_not_waited_for_even_if_it_dies_meanwhile(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await fill(topic, 1, 2)
        topic.network.separate(["host-1"], ["host-2"])
        asked = await waiting(topic, 1)
        await topic.metadata.append([BrokerFenced(2, EPOCH_BASE + 2)])
        assert await asked == (ErrorCode.NONE, 1)
        assert await delete(topic, 2) == (ErrorCode.NONE, 2)

    run(ReplicatedTopic(tmp_path), scenario)


def test_who_leads_no_more_says_so(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await fill(topic, 1, 2)
        topic.network.separate(["host-1"], ["host-2"])
        asked = await waiting(topic, 2)
        await topic.decide(leader=2)
        assert await asked == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)

    run(ReplicatedTopic(tmp_path), scenario)


def test_a_disk_that_fails_meanwhile_ends_the_wait(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await fill(topic, 1, 2)
        topic.network.separate(["host-1"], ["host-2"])
        asked = await waiting(topic, 2)
        topic.brokers[1].partition().local.fail(StorageFault("gone"))
        assert await asked == (ErrorCode.KAFKA_STORAGE_ERROR, -1)

    run(ReplicatedTopic(tmp_path), scenario)


def test_only_so_many_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def scenario(topic: ReplicatedTopic) -> None:
        await fill(topic, 1, 2)
        topic.network.separate(["host-1"], ["host-2"])
        monkeypatch.setattr(log_starts, "LOG_START_WAITS_MAX", 1)
        first = await waiting(topic, 2)
        assert await delete(topic, 2) == (ErrorCode.REQUEST_TIMED_OUT, 0)
        topic.network.heal()
        assert await first == (ErrorCode.NONE, 2)

    run(ReplicatedTopic(tmp_path), scenario)


def test_a_follower_that_asks_after_a_deletion_hears_of_it_at_once(tmp_path: Path):
    async def scenario(topic: ReplicatedTopic) -> None:
        await fill(topic, 1, 2)
        topic.network.separate(["host-1"], ["host-2"])
        await delete(topic, 2, timeout_ms=0)
        wanted = FetchRequestPartition(partition=0, fetch_offset=3, current_leader_epoch=1, log_start_offset=0)
        request = FetchRequest(
            replica_state=FetchRequestReplicaState(replica_id=2, replica_epoch=EPOCH_BASE + 2),
            max_wait_ms=int(2 * TIMEOUT_S * 1000),
            min_bytes=1,
            session_epoch=-1,
            topics=[FetchRequestTopic(topic_id=TOPIC_ID, partitions=[wanted])],
        )
        peer = await topic.brokers[1].connect()
        answer = await peer.ask(request, FetchResponse, TIMEOUT_S)
        assert answer.responses[0].partitions[0].log_start_offset == 2

    run(ReplicatedTopic(tmp_path), scenario)
