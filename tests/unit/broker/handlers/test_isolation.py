"""Fetch and ListOffsets by isolation level, where a transaction is undecided."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from flowstone.client.peer import Peer
from flowstone.errors import ErrorCode
from flowstone.log.partition.partition_log import PartitionLog
from flowstone.wire.messages import (
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
    ListOffsetsResponse,
)
from flowstone.wire.record_batch import Record, build_batch
from tests.support.replicated_topic import TOPIC, ReplicatedTopic, run
from tests.unit.broker.handlers.test_leaders import TIMEOUT_S, fetch, fetch_of

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
LATEST, MAX_TIMESTAMP = -1, -3
FIRST_MS = 1_700_000_000_000
RECORDS, UNDECIDED_FROM = 4, 2


@pytest.fixture
def undecided(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first offset of the undecided transaction; none once the list is empty."""
    first = [UNDECIDED_FROM]
    monkeypatch.setattr(PartitionLog, "last_stable_offset", lambda _, high_watermark: min([*first, high_watermark]))
    return first


async def begin(topic: ReplicatedTopic) -> Peer:
    """A leader with committed records, each a second after the one before."""
    await topic.start(1)
    for number in range(RECORDS):
        await topic.brokers[1].committed(build_batch([Record(0, FIRST_MS + number * 1000, None, b"v")]))
    return await topic.brokers[1].connect()


async def offset_at(peer: Peer, timestamp: int, isolation_level: int, replica_id: int = -1) -> int:
    partition = ListOffsetsRequestPartition(partition_index=0, timestamp=timestamp)
    wanted = ListOffsetsRequestTopic(name=TOPIC, partitions=[partition])
    request = ListOffsetsRequest(replica_id=replica_id, isolation_level=isolation_level, topics=[wanted])
    answer = (await peer.ask(request, ListOffsetsResponse, TIMEOUT_S)).topics[0].partitions[0]
    assert answer.error_code == ErrorCode.NONE
    return answer.offset


@pytest.mark.usefixtures("undecided")
@pytest.mark.parametrize(
    ("timestamp", "isolation_level", "offset"),
    [
        (LATEST, READ_UNCOMMITTED, RECORDS),
        (LATEST, READ_COMMITTED, UNDECIDED_FROM),
        (FIRST_MS + 1000, READ_COMMITTED, 1),
        (FIRST_MS + 2000, READ_UNCOMMITTED, 2),
        (FIRST_MS + 2000, READ_COMMITTED, -1),
        (MAX_TIMESTAMP, READ_UNCOMMITTED, 3),
        (MAX_TIMESTAMP, READ_COMMITTED, -1),
        (-2, READ_COMMITTED, 0),
    ],
)
def test_list_offsets_ends_where_the_consumer_may_see_up_to(
    tmp_path: Path, timestamp: int, isolation_level: int, offset: int
) -> None:
    async def scenario(topic: ReplicatedTopic) -> None:
        peer = await begin(topic)
        assert await offset_at(peer, timestamp, isolation_level) == offset

    run(ReplicatedTopic(tmp_path), scenario)


def test_list_offsets_tells_a_replica_where_the_log_ends(tmp_path: Path) -> None:
    async def scenario(topic: ReplicatedTopic) -> None:
        await topic.start(1, 2)
        await topic.decide(1, isr=(1, 2))
        topic.brokers[2].fetchers.close()
        end = topic.brokers[1].append(build_batch([Record(0, FIRST_MS, None, b"v")]))
        peer = await topic.brokers[1].connect()
        offsets = [await offset_at(peer, LATEST, READ_UNCOMMITTED, each) for each in (-1, 2)]
        assert offsets == [0, end]

    run(ReplicatedTopic(tmp_path), scenario)


@pytest.mark.usefixtures("undecided")
@pytest.mark.parametrize(
    ("isolation_level", "batches", "aborted"), [(READ_UNCOMMITTED, RECORDS, None), (READ_COMMITTED, UNDECIDED_FROM, [])]
)
def test_a_fetch_ends_where_the_consumer_may_see_up_to(
    tmp_path: Path, isolation_level: int, batches: int, aborted: list[Any] | None
) -> None:
    async def scenario(topic: ReplicatedTopic) -> None:
        peer = await begin(topic)
        _, found = await fetch(peer, 0, isolation_level=isolation_level)
        assert len(found.records) == batches * len(build_batch([Record(0, FIRST_MS, None, b"v")]))
        assert (found.high_watermark, found.last_stable_offset) == (RECORDS, UNDECIDED_FROM)
        assert found.aborted_transactions == aborted

    run(ReplicatedTopic(tmp_path), scenario)


@pytest.mark.parametrize("session_epoch", [-1, 0], ids=["without a session", "with a session"])
def test_a_parked_read_committed_fetch_is_answered_once_the_transaction_is_decided(
    tmp_path: Path, undecided: list[int], session_epoch: int
) -> None:
    async def scenario(topic: ReplicatedTopic) -> None:
        peer = await begin(topic)
        request = fetch_of(
            UNDECIDED_FROM, max_wait_ms=8000, isolation_level=READ_COMMITTED, session_epoch=session_epoch
        )
        parked = asyncio.ensure_future(peer.ask(request, FetchResponse, TIMEOUT_S))
        other = await topic.brokers[1].connect()
        await topic.brokers[1].committed(build_batch([Record(0, FIRST_MS, None, b"v")]))
        await fetch(other, 0)
        assert not parked.done()
        undecided.clear()
        await topic.brokers[1].committed(build_batch([Record(0, FIRST_MS, None, b"v")]))
        found = (await parked).responses[0].partitions[0]
        assert (found.last_stable_offset, len(found.records) > 0) == (RECORDS + 2, True)

    run(ReplicatedTopic(tmp_path), scenario)


@pytest.mark.usefixtures("undecided")
def test_a_session_is_not_continued_with_another_isolation_level(tmp_path: Path) -> None:
    async def scenario(topic: ReplicatedTopic) -> None:
        peer = await begin(topic)
        opened, _ = await fetch(peer, 0, session_epoch=0, isolation_level=READ_COMMITTED)
        request = fetch_of(0, session_epoch=1, session_id=opened.session_id, isolation_level=READ_UNCOMMITTED)
        answer = await peer.ask(request, FetchResponse, TIMEOUT_S)
        assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    run(ReplicatedTopic(tmp_path), scenario)
