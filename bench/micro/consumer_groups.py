"""`python -m bench.micro.consumer_groups`: how soon a large consumer group settles, and what its heartbeats cost.

All members join at once, each with a connection of its own, and do at once what they are told. Measured are the time
until every partition has its owner and all members are in one epoch, the broker's processor time meanwhile and while
the group is at rest, and the time from the join of one more member until it has its partitions. With --kafka the same
is measured on Apache Kafka. The members run in this process, beside the broker.
"""

from __future__ import annotations

import argparse
import asyncio
import struct
import sys
import time
from typing import Any, cast
from uuid import uuid4

from bench.processes import cpu_seconds
from bench.servers import Flowstone, Kafka, Server
from flowstone.wire import messages as m
from flowstone.wire.codec import request_encoder, response_decoder

MEMBERS, PARTITIONS = 1000, 1000
SETTLE_SECONDS_MAX = 30.0
CPU_SHARE_MAX = 0.5
REST_SECONDS = 20.0
DEADLINE_SECONDS = 180.0
RETRY_SECONDS = 0.2
SAMPLE_SECONDS = 0.02
GROUP, TOPIC = "large", "shared"
HEARTBEAT, CREATE_TOPICS, FIND_COORDINATOR = 68, 19, 10
FLEXIBLE_HEADER = struct.Struct(">hhih")
RESPONSE_HEADER_BYTES = 5  # the correlation id, and no tags
RETRIED = (14, 15, 16)  # loading, not available, on another broker


class Connection:
    """A connection that has one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, address: str) -> Connection:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def ask(self, key: int, version: int, request: Any) -> Any:
        header = FLEXIBLE_HEADER.pack(key, version, 1, -1) + b"\0"
        frame = header + b"".join(bytes(cast(bytes, part)) for part in request_encoder(key, version)(request))
        self._writer.write(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        answer = await self._reader.readexactly(size)
        return response_decoder(key, version)(memoryview(answer), RESPONSE_HEADER_BYTES)

    def close(self) -> None:
        self._writer.close()


class Member:
    def __init__(self, connection: Connection, address: str) -> None:
        self._connection, self._address, self.member_id = connection, address, str(uuid4())
        self.epoch, self.owned, self.heartbeats = 0, frozenset[tuple[bytes, int]](), 0

    async def run(self) -> None:
        has_news = True
        while True:
            answer = await self._connection.ask(HEARTBEAT, 1, self._request(has_news))
            self.heartbeats += 1
            if answer.error_code in RETRIED:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if answer.error_code:
                raise RuntimeError(f"{answer.error_code}: {answer.error_message}")
            self.epoch, has_news = answer.member_epoch, False
            if answer.assignment is not None:
                topics = answer.assignment.topic_partitions
                owned = frozenset((bytes(each.topic_id), index) for each in topics for index in each.partitions)
                has_news, self.owned = owned != self.owned, owned
            if not has_news:
                await asyncio.sleep(answer.heartbeat_interval_ms / 1000)

    async def leave(self) -> None:
        await asyncio.sleep(SAMPLE_SECONDS)  # for an answer under way
        self._connection.close()
        connection = await Connection.open(self._address)
        request = m.ConsumerGroupHeartbeatRequest(group_id=GROUP, member_id=self.member_id, member_epoch=-1)
        await connection.ask(HEARTBEAT, 1, request)
        connection.close()

    def _request(self, has_news: bool) -> m.ConsumerGroupHeartbeatRequest:
        joins = self.epoch == 0
        topics: dict[bytes, list[int]] = {}
        for topic_id, index in self.owned:
            topics.setdefault(topic_id, []).append(index)
        owned = [
            m.ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic_id, partitions=indexes)
            for topic_id, indexes in topics.items()
        ]
        return m.ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=self.epoch,
            rebalance_timeout_ms=300_000 if joins else -1,
            subscribed_topic_names=[TOPIC] if joins else None,
            topic_partitions=owned if joins or has_news else None,
        )


class Crowd:
    def __init__(self, server: Server, partitions: int) -> None:
        self._server, self._partitions = server, partitions
        self.members: list[Member] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def prepare(self) -> None:
        connection = await Connection.open(self._server.address)
        topic = m.CreateTopicsRequestTopic(name=TOPIC, num_partitions=self._partitions, replication_factor=1)
        await connection.ask(CREATE_TOPICS, 7, m.CreateTopicsRequest(topics=[topic], timeout_ms=60_000))
        request = m.FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP])
        while (await connection.ask(FIND_COORDINATOR, 4, request)).coordinators[0].error_code:
            await asyncio.sleep(RETRY_SECONDS)
        connection.close()

    async def join(self, count: int) -> None:
        connections = [await Connection.open(self._server.address) for _ in range(count)]
        members = [Member(connection, self._server.address) for connection in connections]
        self.members += members
        self._tasks += [asyncio.create_task(member.run()) for member in members]

    async def settled(self) -> float:
        """Wait until the group has settled, and return the seconds that took."""
        started = time.monotonic()
        while not self._is_settled():
            for task in self._tasks:
                if task.done():
                    task.result()
            if time.monotonic() > started + DEADLINE_SECONDS:
                raise RuntimeError(f"the group has not settled in {DEADLINE_SECONDS:.0f} s")
            await asyncio.sleep(0.05)
        return time.monotonic() - started

    def _is_settled(self) -> bool:
        if len({member.epoch for member in self.members}) > 1:
            return False
        sizes = [len(member.owned) for member in self.members]
        if max(sizes) - min(sizes) > 1:
            return False
        owned = [partition for member in self.members for partition in member.owned]
        return len(owned) == len(set(owned)) == self._partitions

    async def cpu_share(self, seconds: float) -> tuple[float, float]:
        """Return the broker's share of a processor and the heartbeats per second during this time."""
        heartbeats = sum(member.heartbeats for member in self.members)
        cpu, started = cpu_seconds(self._server.pid), time.monotonic()
        await asyncio.sleep(seconds)
        passed = time.monotonic() - started
        cpu = cpu_seconds(self._server.pid) - cpu
        return cpu / passed, (sum(member.heartbeats for member in self.members) - heartbeats) / passed

    async def restart_one(self) -> float:
        """Replace the oldest member by a new one, and return the time that partitions had no owner, each on average."""
        member, task = self.members.pop(0), self._tasks.pop(0)
        task.cancel()
        await member.leave()
        unowned_seconds, last = 0.0, time.monotonic()
        await self.join(1)
        while not self._is_settled():
            await asyncio.sleep(SAMPLE_SECONDS)
            now = time.monotonic()
            owned = {partition for each in self.members for partition in each.owned}
            unowned_seconds += (self._partitions - len(owned)) * (now - last)
            last = now
        return unowned_seconds / self._partitions

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()


async def measure(server: Server, members: int, partitions: int, restarts: int) -> bool:
    crowd = Crowd(server, partitions)
    await crowd.prepare()
    cpu = cpu_seconds(server.pid)
    await crowd.join(members)
    seconds = await crowd.settled()
    cpu = cpu_seconds(server.pid) - cpu
    share, rate = await crowd.cpu_share(REST_SECONDS)
    await crowd.join(1)
    joining = await crowd.settled()
    gaps = [await crowd.restart_one() for _ in range(restarts)]
    crowd.stop()
    print(f"{server.name}: {members} members, {partitions} partitions: settled in {seconds:.1f} s, {cpu:.1f} s of CPU;")
    print(f"  at rest {share:.2f} of a core at {rate:.0f} heartbeats/s; one more member settled in {joining:.1f} s")
    if gaps:
        print(f"  {restarts} restarts: a partition had no owner for {sum(gaps) / len(gaps):.2f} s in each, on average")
    return seconds <= SETTLE_SECONDS_MAX and share <= CPU_SHARE_MAX


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=MEMBERS)
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    parser.add_argument("--restarts", type=int, default=0, help="members to replace, one after the other")
    parser.add_argument("--kafka", action="store_true", help="measure Apache Kafka too")
    options = parser.parse_args()
    with Flowstone({}) as server:
        holds = asyncio.run(measure(server, options.members, options.partitions, options.restarts))
    print(
        f"{'passed' if holds else 'MISSED'}: settled in {SETTLE_SECONDS_MAX:.0f} s, {CPU_SHARE_MAX} of a core at rest"
    )
    if options.kafka:
        with Kafka({}) as server:
            asyncio.run(measure(server, options.members, options.partitions, options.restarts))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
