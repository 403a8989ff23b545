"""Requests too large for one turn of the loop, as their clients see them."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowstone.broker.dispatch.large_requests import LARGE_REQUEST_BYTES, UNDER_WAY_BYTES_MAX, UnderWay
from flowstone.broker.handlers import list_offsets
from flowstone.wire import messages as m
from tests.support.running_app import RunningApp
from tests.support.wire_client import Client, Closed, batch_of, fetch_request, frame

MANY = 5000


@pytest.fixture
def app(tmp_path: Path) -> Iterator[RunningApp]:
    settings = {"offsets_topic_num_partitions": "2", "group_initial_rebalance_delay_ms": "0", "slow_request_ms": "200"}
    with RunningApp(str(tmp_path), **settings) as running:
        yield running


@pytest.fixture
def client(app: RunningApp) -> Iterator[Client]:
    with app.client() as client:
        assert client.create_topic("wide", 3) == 0
        client.ask(4, m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
        yield client


def commit(count: int, topic: str = "wide") -> m.OffsetCommitRequest:
    partitions = [
        m.OffsetCommitRequestPartition(partition_index=index % 4, committed_offset=index, committed_metadata="")
        for index in range(count)
    ]
    topics = [m.OffsetCommitRequestTopic(name=topic, partitions=partitions)]
    return m.OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=topics)


@pytest.mark.parametrize("version", [2, 7, 8])
def test_a_large_commit_is_answered_partition_by_partition(client: Client, version: int) -> None:
    (topic,) = client.ask(version, commit(MANY)).topics
    assert [each.partition_index for each in topic.partitions] == [index % 4 for index in range(MANY)]
    assert {each.error_code for each in topic.partitions if each.partition_index < 3} == {0}
    assert {each.error_code for each in topic.partitions if each.partition_index == 3} == {3}
    wanted = m.OffsetFetchRequestTopic(name="wide", partition_indexes=[0, 1, 2])
    (found,) = client.ask(5, m.OffsetFetchRequest(group_id="g", topics=[wanted])).topics
    assert [each.committed_offset for each in found.partitions] == [MANY - 4, MANY - 3, MANY - 2]


@pytest.mark.parametrize("version", [1, 5, 7, 8])
def test_a_large_lookup_of_offsets_is_answered_partition_by_partition(client: Client, version: int) -> None:
    client.ask(7, commit(3))
    indexes = [index % 4 for index in range(MANY)]
    if version >= 8:
        topics = [m.OffsetFetchRequestTopics(name="wide", partition_indexes=indexes)]
        groups = [m.OffsetFetchRequestGroup(group_id="g", topics=topics)]
        (group,) = client.ask(version, m.OffsetFetchRequest(groups=groups)).groups
        (topic,) = group.topics
    else:
        asked = [m.OffsetFetchRequestTopic(name="wide", partition_indexes=indexes)]
        (topic,) = client.ask(version, m.OffsetFetchRequest(group_id="g", topics=asked)).topics
    assert [each.committed_offset for each in topic.partitions] == [index if index < 3 else -1 for index in indexes]


def large_fetch(
    partition_count: int, *, session_epoch: int, max_wait_ms: int, max_bytes: int = 1 << 20
) -> m.FetchRequest:
    """A fetch that names so many partitions of `wide`, over and over."""
    partitions = [
        m.FetchRequestPartition(partition=index % partition_count, partition_max_bytes=1024) for index in range(2000)
    ]
    return m.FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        session_epoch=session_epoch,
        topics=[m.FetchRequestTopic(topic="wide", partitions=partitions)],
        rack_id="",
    )


def test_a_large_fetch_has_a_session_and_is_answered_partition_by_partition(client: Client) -> None:
    response = client.ask(11, large_fetch(2000, session_epoch=0, max_wait_ms=5000))
    assert response.session_id != 0
    assert len(response.responses[0].partitions) == 2000
    codes = {each.partition_index: each.error_code for each in response.responses[0].partitions}
    assert (codes[0], codes[2], codes[3]) == (0, 0, 3)


def sizes(response: m.FetchResponse) -> dict[int, int]:
    """How many bytes of records came from each partition that has any."""
    partitions = [each for topic in response.responses for each in topic.partitions]
    return {each.partition_index: len(each.records) for each in partitions if each.records}


@pytest.mark.parametrize("session_epoch", [-1, 0])
def test_a_large_fetch_that_finds_records_does_not_wait(client: Client, session_epoch: int) -> None:
    batch = batch_of(b"v")
    client.produce("wide", batch, partition=2)
    response = client.ask(11, large_fetch(3, session_epoch=session_epoch, max_wait_ms=30_000))  # the client waits 10 s
    assert sizes(response) == {2: len(batch)}


def test_a_large_fetch_gives_no_more_bytes_than_asked_for_but_one_batch(client: Client) -> None:
    batch = batch_of(b"v")
    for partition in range(3):
        client.produce("wide", batch, partition=partition)
    request = large_fetch(3, session_epoch=-1, max_wait_ms=0, max_bytes=len(batch) + 1)
    assert sizes(client.ask(11, request)) == {0: len(batch)}


@pytest.fixture
def late_batch(app: RunningApp) -> Iterator[bytes]:
    """A batch that another client produces to a partition a little later."""
    batch = batch_of(b"late")
    with app.client() as producer:
        timer = threading.Timer(0.2, producer.produce, ("wide", batch), {"partition": 1})
        timer.start()
        yield batch
        timer.join()


def test_a_large_fetch_with_a_session_waits_for_records(client: Client, late_batch: bytes) -> None:
    response = client.ask(11, large_fetch(3, session_epoch=0, max_wait_ms=9000))
    assert sizes(response) == {1: len(late_batch)}


def test_a_large_fetch_without_a_session_reads_again_when_its_time_is_over(client: Client, late_batch: bytes) -> None:
    began_s = time.monotonic()
    response = client.ask(11, large_fetch(3, session_epoch=-1, max_wait_ms=1000))
    assert sizes(response) == {1: len(late_batch)}
    assert time.monotonic() - began_s >= 1


def test_answers_stay_in_the_order_of_the_requests(client: Client) -> None:
    """A small request behind a large one is answered behind it."""
    hello = m.ApiVersionsRequest(client_software_name="a", client_software_version="1")
    client.send(frame(7, commit(MANY), 1) + frame(3, hello, 2) + frame(7, commit(MANY), 3) + frame(3, hello, 4))
    assert [int.from_bytes(client.receive()[:4], "big") for _ in range(4)] == [1, 2, 3, 4]


def test_others_are_answered_while_a_large_request_is_handled(app: RunningApp, client: Client) -> None:
    names = [m.MetadataRequestTopic(name=f"n{index}") for index in range(50_000)]
    with app.client() as other:
        client.send(frame(9, m.MetadataRequest(topics=names, allow_auto_topic_creation=False), 1))
        answered = 0
        client.socket.settimeout(0.001)
        for _ in range(1000):
            other.ask(4, m.HeartbeatRequest(group_id="g", generation_id=1, member_id="m"))
            answered += 1
            try:
                client.socket.recv(1)
                break
            except TimeoutError:
                continue
    assert answered > 5


def test_a_large_request_that_makes_no_sense_closes_the_connection(client: Client) -> None:
    whole = frame(7, commit(MANY))
    broken = whole[:20] + b"\xff" * (len(whole) - 20)
    client.send(broken)
    with pytest.raises(Closed):
        client.receive()


def test_a_connection_that_goes_away_leaves_nothing_behind(app: RunningApp, client: Client) -> None:
    for _ in range(5):
        with app.client() as leaving:
            leaving.send(frame(7, commit(20_000)))
    (topic,) = client.ask(7, commit(MANY)).topics
    assert topic.partitions[0].error_code == 0
    deadline = time.monotonic() + 10
    while app.call(lambda: app.app._server.buffers.taken_bytes) and time.monotonic() < deadline:
        client.ask(7, commit(3))
    assert app.call(lambda: app.app._server.buffers.taken_bytes) == 0


def test_a_large_join_that_waits_does_not_keep_the_connection(client: Client) -> None:
    """A client that waits for other members may heartbeat and fetch on the same connection."""

    def join(member_id: str) -> m.JoinGroupRequest:
        protocols = [m.JoinGroupRequestProtocol(name="range", metadata=bytes(2 * LARGE_REQUEST_BYTES))]
        return m.JoinGroupRequest(
            group_id="g2",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=protocols,
        )

    first = client.ask(3, join(""))
    assert first.error_code == 0
    client.send(frame(3, join(""), 10))  # waits for the first member to join again
    client.send(frame(11, fetch_request("wide", 0), 11))
    client.send(frame(3, join(first.member_id), 12))
    assert [int.from_bytes(client.receive()[:4], "big") for _ in range(3)] == [10, 11, 12]


def test_so_many_bytes_are_under_way_and_the_others_wait_in_order() -> None:
    async def body() -> list[str]:
        under_way, seen = UnderWay(), []

        async def work(name: str, size_bytes: int, ends: asyncio.Event) -> None:
            await under_way.enter(size_bytes)
            seen.append(name)
            await ends.wait()
            under_way.leave(size_bytes)

        ends = [asyncio.Event() for _ in range(3)]
        sizes = (UNDER_WAY_BYTES_MAX * 2, 10, 20)
        tasks = [
            asyncio.ensure_future(work(str(number), size, end))
            for number, (size, end) in enumerate(zip(sizes, ends, strict=True))
        ]
        await asyncio.sleep(0)
        assert seen == ["0"]  # one always has space
        ends[0].set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert seen == ["0", "1", "2"]
        for end in ends:
            end.set()
        await asyncio.gather(*tasks)
        return seen

    assert asyncio.run(body()) == ["0", "1", "2"]


def test_a_coroutine_that_holds_the_loop_is_logged_as_slow(
    app: RunningApp, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answer = list_offsets._answer

    async def slow(*args: object) -> object:
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            pass
        return await answer(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(list_offsets, "_answer", slow)
    with caplog.at_level(logging.WARNING):
        partitions = [m.ListOffsetsRequestPartition(partition_index=0, timestamp=-1)]
        topics = [m.ListOffsetsRequestTopic(name="wide", partitions=partitions)]
        client.ask(6, m.ListOffsetsRequest(replica_id=-1, topics=topics))
    assert "slow request: ListOffsets" in caplog.text
    assert app.app.services.metrics.request("ListOffsets").slow == 1
