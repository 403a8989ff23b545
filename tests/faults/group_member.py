"""A member of a consumer group that speaks the protocol by hand: a `GroupHistory` hears what it is told and does.

It lives in a thread and through every restart of the broker, as a program would: with its connection it loses nothing
but the answers under way. It reads its partitions from the last commit on and commits after every batch. A restless
member leaves now and then and comes back as another one, so that there is always a rebalance. After each rebalance and
each leave a member also tries what it must not: to commit as the one it was before.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from struct import pack, unpack

from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire.messages import generated as messages
from flowstone.wire.record_batch import decode_records, parse_header

from .group_history import NOT_COMMITTED, GroupHistory
from .raw_client import (
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SYNC_GROUP,
    RawClient,
    Refused,
    whole_batches,
)

GROUP = "faulty"
PROTOCOL_TYPE, PROTOCOL = "raw", "spread"
SESSION_MS = 500
PACE_S = 0.005  # where there is nothing to read or nobody to ask
LEAVE_CHANCE = 0.5
BATCHES_PER_FETCH_MAX = 4
END_TIMEOUT_S = 20

# What a member hears of a group that goes on without it: it joins again, as itself or as a new member.
_REJOIN = {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION}
_RETRY = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}


class _TurnedAway(Exception):
    """The member must join again, and has noted as whom."""


class Member:
    """Does nothing while the `gate` is shut. `confirmed` is the generation that the broker last agreed to."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        partitions: Sequence[TopicPartition],
        history: GroupHistory,
        gate: threading.Event,
        *,
        seed: int = 0,
    ) -> None:
        self.confirmed: int | None = None
        self.assignment: list[TopicPartition] = []
        self.is_restless = False
        self._bootstrap, self._all, self._history, self._gate = bootstrap, partitions, history, gate
        self._chance = random.Random(seed)
        self._member_id = ""
        self._generation: int | None = None  # None: it has to join
        self._positions: dict[TopicPartition, int] = {}
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended = True
        self._gate.set()
        self._thread.join(END_TIMEOUT_S)
        assert not self._thread.is_alive(), f"{self._thread.name} is stuck"

    def _run(self) -> None:
        while self._gate.wait() and not self._ended:
            with suppress(OSError), RawClient(self._bootstrap) as client:
                self._serve(client)
            self.confirmed = None
            time.sleep(PACE_S)

    def _serve(self, client: RawClient) -> None:
        while self._gate.is_set() and not self._ended:
            try:
                if self._generation is None:
                    self._join(client)
                elif self.is_restless and self._chance.random() < LEAVE_CHANCE:
                    self._leave(client)
                else:
                    self._work(client)
            except _TurnedAway:
                pass
            except Refused as refusal:
                self._history.refuse(self._all[0], str(refusal))
            time.sleep(PACE_S)

    # Membership

    def _join(self, client: RawClient) -> None:
        protocol = messages.JoinGroupRequestProtocol(name=PROTOCOL, metadata=b"")
        answer = client.ask(
            JOIN_GROUP,
            messages.JoinGroupRequest(
                group_id=GROUP,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=SESSION_MS,
                member_id=self._member_id,
                protocol_type=PROTOCOL_TYPE,
                protocols=[protocol],
            ),
        )
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
            return
        self._check(answer.error_code)
        self._member_id = answer.member_id
        plan = self._plan([each.member_id for each in answer.members]) if answer.leader == answer.member_id else []
        self._sync(client, answer.generation_id, plan)

    def _plan(self, member_ids: Sequence[str]) -> list[messages.SyncGroupRequestAssignment]:
        """Everybody's partitions, dealt out like cards."""
        return [
            messages.SyncGroupRequestAssignment(
                member_id=member_id,
                assignment=b"".join(pack(">i", each.partition) for each in self._all[at :: len(member_ids)]),
            )
            for at, member_id in enumerate(member_ids)
        ]

    def _sync(self, client: RawClient, generation: int, plan: Sequence[messages.SyncGroupRequestAssignment]) -> None:
        answer = client.ask(
            SYNC_GROUP,
            messages.SyncGroupRequest(
                group_id=GROUP,
                generation_id=generation,
                member_id=self._member_id,
                protocol_type=PROTOCOL_TYPE,
                protocol_name=PROTOCOL,
                assignments=plan,
            ),
        )
        self._check(answer.error_code)
        data = bytes(answer.assignment)
        self.assignment = [self._all[number] for number in unpack(f">{len(data) // 4}i", data)]
        self._history.own(self._member_id, generation, self.assignment)
        self._generation, self.confirmed = generation, generation
        self._positions = {}
        self._commit_as_fenced(client, generation - 1)

    def _leave(self, client: RawClient) -> None:
        member_id, generation = self._member_id, self._generation
        assert generation is not None
        leaving = [messages.LeaveGroupRequestMember(member_id=member_id)]
        answer = client.ask(LEAVE_GROUP, messages.LeaveGroupRequest(group_id=GROUP, members=leaving))
        self._check(answer.error_code or answer.members[0].error_code)
        self._commit_as_fenced(client, generation)
        self._forget(member_id="")

    def _forget(self, *, member_id: str) -> None:
        self._member_id, self._generation, self.confirmed, self.assignment = member_id, None, None, []

    def _check(self, code: int) -> None:
        """_TurnedAway unless all is well."""
        if code == ErrorCode.NONE:
            return
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._forget(member_id="")
        elif code in _REJOIN:
            self._forget(member_id=self._member_id)
        elif code not in _RETRY:
            self._history.refuse(self._all[0], f"{ErrorCode(code).name} for {self._member_id}")
        raise _TurnedAway

    # Work

    def _work(self, client: RawClient) -> None:
        assert self._generation is not None
        beat = messages.HeartbeatRequest(group_id=GROUP, generation_id=self._generation, member_id=self._member_id)
        self._check(client.ask(HEARTBEAT, beat).error_code)
        self.confirmed = self._generation
        if self.assignment and not self._positions:
            self._find_positions(client)
        for partition in self.assignment:
            self._read(client, partition)

    def _find_positions(self, client: RawClient) -> None:
        promised = self._history.acknowledged()
        committed = committed_offsets(client, self.assignment)
        self._history.check_committed(committed, promised)
        self._positions = {partition: max(offset, 0) for partition, offset in committed.items()}

    def _read(self, client: RawClient, partition: TopicPartition) -> None:
        position = self._positions[partition]
        for batch in list(whole_batches(client.fetch(partition, position)))[:BATCHES_PER_FETCH_MAX]:
            self._history.deliver(partition, [each.offset for each in decode_records(batch)])
            position = parse_header(batch).next_offset
            self._commit(client, partition, position)
            self._positions[partition] = position

    def _commit(self, client: RawClient, partition: TopicPartition, offset: int) -> None:
        assert self._generation is not None
        self._history.send_commit(partition, offset)
        self._check(_commit(client, self._member_id, self._generation, partition, offset))
        self._history.acknowledge_commit(partition, offset)

    def _commit_as_fenced(self, client: RawClient, generation: int) -> None:
        """An offset that would be missed: if it were taken, the next owner would begin at the start again."""
        if generation < 0:
            return
        partition = self._chance.choice(self._all)
        code = _commit(client, self._member_id, generation, partition, offset=0)
        who = f"{self._member_id} in generation {generation}"
        self._history.answer_fenced_commit(partition, who, accepted=code == ErrorCode.NONE)


def _commit(client: RawClient, member_id: str, generation: int, partition: TopicPartition, offset: int) -> int:
    wanted = messages.OffsetCommitRequestPartition(partition_index=partition.partition, committed_offset=offset)
    answer = client.ask(
        OFFSET_COMMIT,
        messages.OffsetCommitRequest(
            group_id=GROUP,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            topics=[messages.OffsetCommitRequestTopic(name=partition.topic, partitions=[wanted])],
        ),
    )
    code: int = answer.topics[0].partitions[0].error_code
    return code


def committed_offsets(client: RawClient, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Of one topic. Refused if the broker does not say."""
    topic = messages.OffsetFetchRequestTopic(
        name=partitions[0].topic, partition_indexes=[each.partition for each in partitions]
    )
    answer = client.ask(OFFSET_FETCH, messages.OffsetFetchRequest(group_id=GROUP, topics=[topic]))
    if answer.error_code:
        raise Refused(answer.error_code)
    found = {each.partition_index: each.committed_offset for each in answer.topics[0].partitions}
    return {partition: found.get(partition.partition, NOT_COMMITTED) for partition in partitions}
