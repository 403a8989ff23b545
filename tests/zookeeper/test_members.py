"""Membership in a real ZooKeeper: who is there, since when, and until when."""

from __future__ import annotations

import asyncio

import pytest
from kazoo.client import KazooClient

from flowstone.cluster.logs.consensus import Member
from flowstone.embedded.zookeeper_server import ZooKeeperServer
from flowstone.errors import ApiError, StartupError
from tests.support.zookeeper_ties import Tie, Ties, note, until


def expire(tie: Tie) -> None:
    """Ends the session, as the servers do with one that is silent: its other user closes it."""
    client = tie.consensus._client.kazoo
    host, port = client.hosts[0]
    other = KazooClient(f"{host}:{port}", client_id=client.client_id)
    other.start()
    other.stop()
    other.close()


async def until_renewed(tie: Tie, expected: bool) -> None:
    async with asyncio.timeout(10):
        while await tie.consensus.renew() is not expected:
            await asyncio.sleep(0.02)


def test_members_are_listed_by_when_they_joined_by_every_broker(ties: Ties) -> None:
    async def body() -> None:
        async with ties.open("a", "b", "c") as brokers:
            incarnations = [
                await broker.consensus.join(node_id, f"d{node_id}")
                for node_id, broker in zip((30, 4, 2), brokers, strict=True)
            ]
            for broker in brokers:
                await broker.until_members([30, 4, 2])
                assert [member.incarnation for member in broker.consensus.members] == incarnations
            assert await brokers[0].consensus.look() == brokers[2].consensus.members

    asyncio.run(body())


def test_a_member_renews_and_who_is_none_does_not(ties: Ties) -> None:
    async def body() -> None:
        async with ties.open("a") as (broker,):
            assert not await broker.consensus.renew()
            await broker.consensus.join(1, "d1")
            assert await broker.consensus.renew()
            assert broker.member_ids == [1]

    asyncio.run(body())


def test_who_leaves_is_gone_at_once_and_can_still_use_its_log(ties: Ties) -> None:
    async def body() -> None:
        async with ties.open("a", "b", session_timeout_s=30) as (leaver, other):
            await leaver.consensus.join(1, "d1")
            await other.consensus.join(2, "d2")
            await leaver.consensus.leave()
            await other.until_members([2])
            await leaver.metadata.append(note("x"))
            await leaver.metadata.close()
            leaver._is_open = False

    asyncio.run(body())


def test_who_is_killed_stays_a_member_until_its_session_runs_out(ties: Ties) -> None:
    async def body() -> None:
        loop = asyncio.get_running_loop()
        async with ties.open("a", "b", session_timeout_s=1.5) as (killed, other):
            await killed.consensus.join(1, "d1")
            await other.consensus.join(2, "d2")
            await other.until_members([1, 2])
            assert await killed.consensus.renew()
            renewed_at = loop.time()
            killed.kill()
            await other.until_members([2])
            assert 1.5 <= loop.time() - renewed_at < 4

    asyncio.run(body())


def test_a_session_that_ran_out_ends_the_membership_and_another_can_be_had(ties: Ties) -> None:
    async def body() -> None:
        async with ties.open("a", "b") as (broker, other):
            before = await broker.consensus.join(1, "d1")
            await other.consensus.join(2, "d2")
            await asyncio.to_thread(expire, broker)
            await until(lambda: 1 not in broker.member_ids, broker.consensus.on_members)
            assert not await broker.consensus.renew()
            after = await broker.consensus.join(1, "d1")
            assert after != before
            assert await broker.consensus.renew()
            await other.until_members([2, 1])
            await broker.metadata.append(note("x"))
            await other.until_version(0)

    asyncio.run(body())


def test_a_former_life_of_the_same_data_directory_is_removed(ties: Ties) -> None:
    async def body() -> None:
        async with ties.open("a", "b", "c", session_timeout_s=30) as (former, other, new):
            await former.consensus.join(1, "d1")
            await other.consensus.join(2, "d2")
            former.kill()
            incarnation = await new.consensus.join(1, "d1")
            await other.until_members([2, 1])
            assert other.consensus.members[1] == Member(1, incarnation)
            assert await new.consensus.renew()

    asyncio.run(body())


def test_the_node_id_of_another_data_directory_is_refused(ties: Ties) -> None:
    async def body() -> None:
        async with ties.open("a", "b") as (first, second):
            await first.consensus.join(1, "d1")
            joining = asyncio.ensure_future(second.consensus.join(1, "another"))
            while not joining.done():
                assert await first.consensus.renew()
            with pytest.raises(StartupError, match="node id 1 and is alive"):
                await joining

    asyncio.run(body())


def test_a_broker_that_lost_its_data_directory_joins_once_its_former_session_has_expired(ties: Ties) -> None:
    async def body() -> None:
        async with ties.open("a", "b", session_timeout_s=4) as (former, new):
            await former.consensus.join(1, "d1")
            former.kill()
            incarnation = await new.consensus.join(1, "another")
            assert list(new.consensus.members) == [Member(1, incarnation)]

    asyncio.run(body())


def test_while_zookeeper_is_gone_nothing_is_renewed_and_nothing_else_changes(
    fragile_zookeeper: ZooKeeperServer, fragile_ties: Ties
) -> None:
    async def body() -> None:
        async with fragile_ties.open("a", session_timeout_s=10) as (broker,):
            incarnation = await broker.consensus.join(1, "d1")
            await asyncio.to_thread(fragile_zookeeper.kill)
            assert not await broker.consensus.renew()
            with pytest.raises(ApiError):
                await broker.consensus.look()
            assert list(broker.consensus.members) == [Member(1, incarnation)]
            await asyncio.to_thread(fragile_zookeeper.start)
            await until_renewed(broker, True)
            assert list(broker.consensus.members) == [Member(1, incarnation)]

    asyncio.run(body())


def test_the_session_timeout_is_what_zookeeper_grants(fragile_ties: Ties) -> None:
    async def body() -> None:
        async with fragile_ties.open("a", session_timeout_s=90) as (broker,):
            assert broker.consensus.session_timeout_s == 20

    asyncio.run(body())


def test_a_broker_that_cannot_reach_zookeeper_stops_all_the_same(
    fragile_zookeeper: ZooKeeperServer, fragile_ties: Ties, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowstone.cluster.zookeeper.log.CLOSE_TIMEOUT_S", 0.1)

    async def body() -> None:
        async with fragile_ties.open("a", session_timeout_s=10) as (broker,):
            await broker.consensus.join(1, "d1")
            await asyncio.to_thread(fragile_zookeeper.kill)
            append = asyncio.create_task(broker.metadata.append(note("x")))
            await asyncio.sleep(0)
            await broker.close()
            with pytest.raises(asyncio.CancelledError):
                await append

    asyncio.run(body())
