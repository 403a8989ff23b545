"""A member of a share group in a simulation, which handles one partition and heeds nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from flowstone.client.peer import Peer
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    ShareFetchRequest,
    ShareFetchRequestAcknowledgementBatch,
    ShareFetchRequestPartition,
    ShareFetchRequestTopic,
    ShareFetchResponse,
    ShareFetchResponsePartition,
)
from flowstone.wire.record_batch import decode_records
from tests.sim.client import Client, Unanswered
from tests.support.wire_client import whole_batches

from .history import Delivered, Group, QueueHistory

FETCH_WAIT_MS, FETCH_BYTES, FETCH_RECORDS = 200, 4096, 12
PAUSE_S_MAX = 0.3
TYPES = {"gap": 0, "accept": 1, "release": 2, "reject": 3}
# What is done with records: what is kept is not acknowledged, so that its lock ends.
DECISIONS, WEIGHTS = ("accept", "release", "reject", "keep"), (78, 10, 5, 7)
# Records with this value are released until they are given up.
POISON = b"poison"
# Records of transactions that are aborted in any case have this one.
DOOMED = b"doomed"
OPENING_EPOCH = 0


class Decided(NamedTuple):
    offset: int
    kind: str
    count: int


class Worker:
    def __init__(
        self,
        client: Client,
        history: QueueHistory,
        group: Group,
        member: str,
        partition: TopicPartition,
        are_clocks_right: Callable[[], bool],
    ) -> None:
        self.client, self._history, self.group, self._member = client, history, group, member
        self.partition = partition
        self._are_clocks_right = are_clocks_right
        self._decided: list[Decided] = []
        self._peer: Peer | None = None
        self._epoch = OPENING_EPOCH
        self.quiet_count = 0  # fetches in a row that were answered and brought nothing
        self.is_finishing = self.is_stopping = False

    async def run(self) -> None:
        while not self.is_stopping:
            try:
                await self._turn()
            except Unanswered:
                self._begin_anew()
                await self.client.back_off()
            await self.client.clock.sleep(self.client.random.uniform(0, PAUSE_S_MAX))

    def _begin_anew(self) -> None:
        self._peer, self._epoch, self._decided = None, OPENING_EPOCH, []
        self.quiet_count = 0

    async def _turn(self) -> None:
        leader = await self.client.leader(self.partition)
        if leader is not self._peer:
            self._begin_anew()
            self._peer = leader
        decided, self._decided = self._decided, []
        for offset, kind, _ in decided:
            if kind == "gap":
                continue
            self._history.ask(self.group, self.partition, offset, kind)
        asked_s = self.client.clock.monotonic()
        try:
            response = await self.client.ask_over(leader, self._request(decided), ShareFetchResponse)
        except Unanswered:
            self._history.unanswered(self.group, self.partition)
            self.client.forget_leader(self.partition)
            raise
        if response.error_code:
            raise Unanswered(ErrorCode(response.error_code).name)
        self._epoch += 1
        found = next((each for topic in response.responses for each in topic.partitions), None)
        if found is None:
            self.quiet_count += 1
            return
        self._take(found, decided, asked_s)

    def _take(self, found: ShareFetchResponsePartition, decided: list[Decided], asked_s: float) -> None:
        now_s = self.client.clock.monotonic()
        if found.acknowledge_error_code == ErrorCode.NONE:
            is_timed = self._are_clocks_right()
            for offset, kind, count in decided:
                if kind == "gap":
                    continue
                times_s = asked_s, now_s
                self._history.acknowledged(self.group, self.partition, offset, kind, count, times_s, is_timed=is_timed)
        if found.error_code:
            self.client.forget_leader(self.partition)
            raise Unanswered(ErrorCode(found.error_code).name)
        records = {
            record.offset: record
            for batch in whole_batches(bytes(found.records or b""))
            for record in decode_records(batch)
        }
        self.quiet_count = 0 if found.acquired_records else self.quiet_count + 1
        for each in found.acquired_records:
            for offset in range(each.first_offset, each.last_offset + 1):
                if offset not in records:  # compaction has removed it
                    self._decided.append(Decided(offset, "gap", each.delivery_count))
                    continue
                is_doomed = records[offset].value == DOOMED
                delivered = Delivered(records[offset].key, each.delivery_count, is_doomed)
                self._history.deliver(self.group, self.partition, offset, delivered, asked_s, now_s)
                self._decide(offset, each.delivery_count, is_poison=records[offset].value == POISON)

    def _decide(self, offset: int, count: int, *, is_poison: bool) -> None:
        kind = "accept" if self.is_finishing else self.client.random.choices(DECISIONS, WEIGHTS)[0]
        if is_poison:
            kind = "release"
        if kind != "keep":
            self._decided.append(Decided(offset, kind, count))

    def _request(self, decided: list[Decided]) -> ShareFetchRequest:
        acknowledgements = [
            ShareFetchRequestAcknowledgementBatch(
                first_offset=offset, last_offset=offset, acknowledge_types=[TYPES[kind]]
            )
            for offset, kind, _ in sorted(decided)
        ]
        wanted = ShareFetchRequestPartition(
            partition_index=self.partition.partition, acknowledgement_batches=acknowledgements
        )
        topic_id = self.client.topic_ids[self.partition.topic]
        return ShareFetchRequest(
            group_id=self.group.name,
            member_id=self._member,
            share_session_epoch=self._epoch,
            max_wait_ms=FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            max_records=FETCH_RECORDS,
            batch_size=FETCH_RECORDS,
            share_acquire_mode=1,
            topics=[ShareFetchRequestTopic(topic_id=topic_id, partitions=[wanted])],
        )
