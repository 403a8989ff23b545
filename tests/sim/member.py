"""A member of a consumer group, as clients are written: joins, leads if it must, reads, commits, and joins again.

After each rebalance it also tries, now and then, to commit as the member it was before: such a commit must be refused.
"""

from __future__ import annotations

from flowstone.coordinator.groups.classic.consumer_protocol import assigned_partitions
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tests.unit.coordinator.groups.harness import assignment, subscription

from .client import Client, Unanswered
from .consumer import Consumer
from .history import ClusterHistory

PROTOCOL = "range"
SESSION_TIMEOUT_MS, REBALANCE_TIMEOUT_MS = 6_000, 2_000
HEARTBEAT_INTERVAL_S = 0.5
GONE = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.ILLEGAL_GENERATION})
NOBODY, NO_GENERATION = "", -1


class Rejoin(Exception):
    """This generation is over for the member, or it cannot tell whether it is."""


class Member:
    def __init__(self, client: Client, history: ClusterHistory, group_id: str, topic: str, partitions: int) -> None:
        self._client, self._history, self._group_id = client, history, group_id
        self._topic = topic
        self._partitions = [TopicPartition(topic, index) for index in range(partitions)]
        self._member_id, self._generation = NOBODY, NO_GENERATION
        self._former: tuple[str, int] | None = None
        self._consumers: dict[TopicPartition, Consumer] = {}
        self.committed_count = 0
        self.is_stopping = False

    async def run(self) -> None:
        while not self.is_stopping:
            try:
                await self._join()
                await self._take_up()
                while not self.is_stopping:
                    await self._work()
            except (Unanswered, Rejoin):
                await self._client.back_off()

    # Joining

    async def _join(self) -> None:
        protocols = [JoinGroupRequestProtocol(name=PROTOCOL, metadata=subscription([self._topic]))]
        request = JoinGroupRequest(
            group_id=self._group_id,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self._member_id,
            protocol_type="consumer",
            protocols=protocols,
        )
        joined = await self._client.ask_coordinator(self._group_id, request, JoinGroupResponse)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = joined.member_id
            raise Rejoin
        self._check(joined.error_code)
        if self._generation != NO_GENERATION:
            self._former = (self._member_id, self._generation)
        self._member_id, self._generation = joined.member_id, joined.generation_id
        members = [each.member_id for each in joined.members] if joined.leader == joined.member_id else []
        sync = SyncGroupRequest(
            group_id=self._group_id,
            generation_id=self._generation,
            member_id=self._member_id,
            protocol_type="consumer",
            protocol_name=PROTOCOL,
            assignments=self._share_out(members),
        )
        synced = await self._client.ask_coordinator(self._group_id, sync, SyncGroupResponse)
        self._check(synced.error_code)
        mine = sorted(assigned_partitions(bytes(synced.assignment)))
        self._history.groups.own(self._member_id, self._generation, mine)
        self._consumers = {each: Consumer(self._client, self._history, each) for each in mine}

    def _share_out(self, members: list[str]) -> list[SyncGroupRequestAssignment]:
        return [
            SyncGroupRequestAssignment(
                member_id=member, assignment=assignment(",".join(map(str, self._partitions[index :: len(members)])))
            )
            for index, member in enumerate(sorted(members))
        ]

    async def _take_up(self) -> None:
        """Goes on where the group was."""
        if not self._consumers:
            return
        promised = self._history.groups.acknowledged()
        await self._client.learn(self._topic)
        topics = [
            OffsetFetchRequestTopics(
                name=self._topic,
                topic_id=self._client.topic_ids[self._topic],
                partition_indexes=[each.partition for each in self._consumers],
            )
        ]
        wanted = OffsetFetchRequestGroup(group_id=self._group_id, topics=topics, member_epoch=-1)
        request = OffsetFetchRequest(groups=[wanted], require_stable=True)
        answer = await self._client.ask_coordinator(self._group_id, request, OffsetFetchResponse)
        group = answer.groups[0]
        self._check(group.error_code)
        found = {TopicPartition(self._topic, each.partition_index): each for each in group.topics[0].partitions}
        for each in found.values():
            self._check(each.error_code)
        committed = {partition: each.committed_offset for partition, each in found.items()}
        self._history.groups.check_committed(committed, promised)
        for partition, offset in committed.items():
            self._consumers[partition].position = max(0, offset)

    # Working

    async def _work(self) -> None:
        await self._client.clock.sleep(self._client.random.uniform(0, HEARTBEAT_INTERVAL_S))
        for partition, consumer in self._consumers.items():
            records = await consumer.poll()
            for offset, value in records:
                self._history.see(partition, offset, value)
            self._history.groups.deliver(partition, [offset for offset, _ in records])
            if records:
                await self._commit(partition, consumer.position)
        beat = HeartbeatRequest(group_id=self._group_id, generation_id=self._generation, member_id=self._member_id)
        answer = await self._client.ask_coordinator(self._group_id, beat, HeartbeatResponse)
        self._check(answer.error_code)

    async def _commit(self, partition: TopicPartition, offset: int) -> None:
        groups = self._history.groups
        groups.send_commit(partition, offset)
        former, self._former = self._former, None
        if former is not None and former[1] != self._generation:
            code = await self._ask_to_commit(partition, offset, *former)
            groups.answer_fenced_commit(partition, f"{former}", accepted=code is ErrorCode.NONE)
        code = await self._ask_to_commit(partition, offset, self._member_id, self._generation)
        self._check(code)
        self._history.acknowledge_commit(partition, offset)
        self.committed_count += 1

    async def _ask_to_commit(
        self, partition: TopicPartition, offset: int, member_id: str, generation: int
    ) -> ErrorCode:
        wanted = OffsetCommitRequestPartition(partition_index=partition.partition, committed_offset=offset)
        topic_id = self._client.topic_ids[self._topic]
        topics = [OffsetCommitRequestTopic(name=self._topic, topic_id=topic_id, partitions=[wanted])]
        request = OffsetCommitRequest(
            group_id=self._group_id,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            topics=topics,
        )
        answer = await self._client.ask_coordinator(self._group_id, request, OffsetCommitResponse)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def _check(self, code: int) -> None:
        """Rejoin where the answer says so, or that another is the coordinator."""
        if code == ErrorCode.NONE:
            return
        if code in GONE:
            self._member_id = NOBODY
        elif code != ErrorCode.REBALANCE_IN_PROGRESS:
            self._client.forget_coordinator(self._group_id)
        raise Rejoin(ErrorCode(code).name)
