"""The metadata log in a real ZooKeeper: one order for all, each append once, whoever races and whatever breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from flowstone.cluster.image.cluster_image import ClusterImage, PartitionImage
from flowstone.cluster.image.records import MetadataRecord, PartitionChanged, TopicCreated
from flowstone.cluster.logs.metadata_log import Outrun
from flowstone.cluster.zookeeper import store
from flowstone.cluster.zookeeper.nodes import LOG_NODE_BYTES_MAX
from flowstone.embedded.zookeeper_server import ZooKeeperServer
from flowstone.errors import ApiError, ErrorCode, StorageFault
from tests.support.zookeeper_ties import Tie, Ties, count_one, found, note

TOPICS, TOPIC_PARTITIONS = 100, 100
PARTITIONS = TOPICS * TOPIC_PARTITIONS


async def count(tie: Tie, many: int) -> list[int]:
    return [await tie.metadata.change(count_one) for _ in range(many)]


def lose_connection(tie: Tie) -> None:
    """The socket goes; the session does not."""
    tie.consensus._client._handler._socket.shutdown(2)


# Agreement


def test_what_one_broker_appends_every_broker_sees(ties: Ties) -> None:
    async def body() -> None:
        async with ties.open("a", "b") as (first, second):
            await first.metadata.append(found())
            await first.metadata.append(note("x"))
            await second.until_version(1)
            assert second.image == first.image

    asyncio.run(body())


def test_brokers_that_race_lose_nothing_and_make_nothing_twice(ties: Ties) -> None:
    async def body() -> None:
        async with ties.open("a", "b", "c") as brokers:
            racers = [count(broker, 100) for broker in brokers] + [count(brokers[0], 25) for _ in range(8)]
            taken = await asyncio.gather(*racers)
            assert sorted(number for each in taken for number in each) == list(range(500))
            for broker in brokers:
                await broker.until_version(499)
            assert brokers[0].image == brokers[1].image == brokers[2].image

    asyncio.run(body())


def test_an_append_decided_on_an_old_image_is_outrun_once_its_maker_has_seen_what_came_first(ties: Ties) -> None:
    async def body() -> None:
        async with ties.open("a", "b") as (first, second):
            results = await asyncio.gather(
                first.metadata.append(note("x")), second.metadata.append(note("y")), return_exceptions=True
            )
            outrun = [isinstance(result, Outrun) for result in results]
            assert sorted(outrun) == [False, True]
            assert (first, second)[outrun.index(True)].image.version == 0

    asyncio.run(body())


def test_appends_that_wait_together_share_a_node_and_keep_their_order(ties: Ties) -> None:
    async def body() -> None:
        async with ties.open("a") as (broker,):
            seen: list[str] = []
            broker.metadata.on_change(lambda before, after, records: seen.extend(records[0].changes))
            await asyncio.gather(*(broker.metadata.append(note(f"{number:02}")) for number in range(50)))
            assert seen == [f"{number:02}" for number in range(50)]
            nodes = await broker.consensus._client.ask(
                lambda: broker.consensus._client.kazoo.get_children_async(broker.consensus._client.path("log"))
            )
            assert len(nodes) <= 3

    asyncio.run(body())


# Size


def partitions(leader: int, epoch: int) -> tuple[PartitionImage, ...]:
    return (PartitionImage(leader, epoch, epoch, (1, 2, 3), (leader, 3)),) * TOPIC_PARTITIONS


def topics() -> list[MetadataRecord]:
    return [TopicCreated(f"topic-{number}", topic_id(number), partitions(1, 0), {}) for number in range(TOPICS)]


def failover(leader: int, epoch: int) -> list[MetadataRecord]:
    return [
        PartitionChanged(topic_id(number), partition, state)
        for number in range(TOPICS)
        for partition, state in enumerate(partitions(leader, epoch))
    ]


def topic_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_a_failover_of_ten_thousand_partitions_is_one_append(ties: Ties) -> None:
    async def body() -> None:
        async with ties.open("a", "b") as (first, second):
            await first.metadata.append(topics())
            seen: list[tuple[ClusterImage, int]] = []
            second.metadata.on_change(lambda before, after, records: seen.append((after, len(records))))
            await second.until_version(TOPICS - 1)
            await first.metadata.append(failover(2, 1))
            await second.until_version(TOPICS + PARTITIONS - 1)
            assert seen[-1][1] == PARTITIONS
            assert second.image == first.image
            assert all(topic.partitions == partitions(2, 1) for topic in second.image.topics.values())
        async with ties.open("late") as (late,):
            assert late.image == first.image

    asyncio.run(body())


def test_of_two_large_appends_that_race_one_is_done_and_the_other_leaves_nothing(ties: Ties) -> None:
    async def body() -> None:
        async with ties.open("a", "b") as brokers:
            await brokers[0].metadata.append(topics())
            await brokers[1].until_version(TOPICS - 1)
            results = await asyncio.gather(
                *(broker.metadata.append(failover(2, epoch)) for epoch, broker in enumerate(brokers, start=1)),
                return_exceptions=True,
            )
            assert [type(result) for result in results].count(Outrun) == 1
            assert brokers[0].image == brokers[1].image
            client = brokers[0].consensus._client
            chunks = await client.ask(lambda: client.kazoo.get_children_async(client.path("chunks")))
            assert len({name.rpartition("-")[0] for name in chunks}) == 1
            assert len(chunks) > 1

    asyncio.run(body())


def test_an_append_beyond_the_limit_is_refused_and_the_log_goes_on(ties: Ties, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "APPEND_BYTES_MAX", LOG_NODE_BYTES_MAX)

    async def body() -> None:
        async with ties.open("a") as (broker,):
            with pytest.raises(ApiError) as refusal:
                await broker.metadata.append(note("x", "y" * LOG_NODE_BYTES_MAX))
            assert refusal.value.code == ErrorCode.POLICY_VIOLATION
            await broker.metadata.append(note("x"))
            assert broker.image.version == 0

    asyncio.run(body())


# What breaks


def test_an_append_whose_answer_was_lost_is_done_once(fragile_zookeeper: ZooKeeperServer, fragile_ties: Ties) -> None:
    async def body() -> None:
        async with fragile_ties.open("a", "b", session_timeout_s=10) as (broker, other):
            await broker.metadata.append(found())
            fragile_zookeeper.pause()
            append = asyncio.create_task(broker.metadata.append(note("x")))
            client = broker.consensus._client
            while not client.kazoo._pending:  # sent, and not answered
                await asyncio.sleep(0.01)
            lose_connection(broker)
            fragile_zookeeper.resume()
            await append
            await other.until_version(1)
            assert broker.image.version == 1
            assert other.image == broker.image

    asyncio.run(body())


def test_appends_survive_zookeeper_being_killed_and_brought_back(
    fragile_zookeeper: ZooKeeperServer, fragile_ties: Ties
) -> None:
    async def body() -> None:
        async with fragile_ties.open("a", "b", session_timeout_s=10) as brokers:
            counting = [asyncio.create_task(count(broker, 60)) for broker in brokers]
            for version in (20, 60):
                await brokers[0].until_version(version)
                await asyncio.to_thread(fragile_zookeeper.kill)
                await asyncio.to_thread(fragile_zookeeper.start)
            taken = await asyncio.gather(*counting)
            assert sorted(number for each in taken for number in each) == list(range(120))
            for broker in brokers:
                await broker.until_version(119)
            assert brokers[0].image == brokers[1].image

    asyncio.run(body())


def test_a_broker_that_lost_its_connection_sees_what_it_missed(ties: Ties) -> None:
    async def body() -> None:
        async with ties.open("a", "b") as (first, second):
            lose_connection(second)
            await first.metadata.append(note("x"))
            await second.until_version(0)
            assert second.image == first.image

    asyncio.run(body())


def test_nothing_comes_of_an_append_to_a_log_that_is_gone(ties: Ties) -> None:
    """Whoever reads on says so; the append may come before the news of the loss."""

    async def body() -> None:
        async with ties.open("a") as (broker,):
            await broker.metadata.append(found())
            log, client = broker.metadata._log, broker.consensus._client
            end = log._log_end
            await asyncio.to_thread(client.kazoo.delete, client.path("log"), -1, True)
            assert await asyncio.to_thread(log._store.append, note("x"), end, lambda event: None) is None

    asyncio.run(body())


def test_a_log_that_is_lost_while_brokers_run_takes_no_more_changes(
    ties: Ties, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with ties.open("a") as (broker,):
            await broker.metadata.append(found())
            client = broker.consensus._client
            await asyncio.to_thread(client.kazoo.delete, client.path("log"), -1, True)
            with pytest.raises(StorageFault, match="lost the metadata log"):
                await broker.metadata.append(note("x"))
            with pytest.raises(StorageFault):
                await broker.metadata.append(note("x"))
            assert broker.image.version == 0

    asyncio.run(body())
    assert "takes no more changes" in caplog.text


def test_the_caller_of_an_append_may_be_cancelled_and_the_append_is_not(ties: Ties) -> None:
    async def body() -> None:
        async with ties.open("a", "b") as (first, second):
            append = asyncio.create_task(first.metadata.append(note("x")))
            await asyncio.sleep(0)
            append.cancel()
            await second.until_version(0)
            await first.metadata.append(note("y"))
            assert first.image.broker_configs["1"] == {"x": "x", "y": "x"}

    asyncio.run(body())


def test_a_killed_broker_appends_nothing_more(ties: Ties) -> None:
    async def body() -> None:
        async with ties.open("a", "b") as (first, second):
            appends: Sequence[asyncio.Task[None]] = [
                asyncio.create_task(first.metadata.append(note(name))) for name in "xyz"
            ]
            await asyncio.sleep(0)
            first.kill()
            await asyncio.wait(appends)
            assert all(append.cancelled() for append in appends)
            with pytest.raises(StorageFault):
                await first.metadata.append(note("later"))
            await second.metadata.append(note("after"))
            assert second.image.version == 0

    asyncio.run(body())
