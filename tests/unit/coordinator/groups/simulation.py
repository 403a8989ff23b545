"""Random lives of groups on a virtual clock, with an oracle beside them.

A world is a coordinator (the shard and the runtime's rules, harness.py), a topic that grows, and clients that join,
read, commit, pause, die and come back; the coordinator crashes now and then and keeps what was committed, or a little
more. Everything follows from the seed. The oracle knows what was stored, what was read and what was answered:

- G1: no partition has two owners in one generation, by the assignments that clients were told.
- G2: an accepted commit comes from the partition's owner in the current generation; delayed ones are sent too.
- G3: what the coordinator serves after a crash is what the log says, and the log keeps what was answered.
- G4: nobody starts reading beyond what the group has read, and nothing is committed beyond it.
- G5: once the faults end, every group settles within its sessions' time plus a little, and reads everything.
- Every request is answered exactly once, unless the coordinator died on it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from flowstone.coordinator.groups import messages as m
from flowstone.coordinator.groups.classic.consumer_protocol import assigned_partitions
from flowstone.coordinator.groups.classic.member import pending_bytes
from flowstone.coordinator.groups.config import OFFSET_OVERHEAD_BYTES, TEXT_CHARACTER_BYTES, GroupConfig
from flowstone.coordinator.groups.records import GroupStored, OffsetCommitted
from flowstone.coordinator.groups.timers import Timer, TimerKind
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from tests.unit.coordinator.groups.harness import Coordinator
from tests.unit.coordinator.groups.simulated_client import Client, Token

SESSION_TIMEOUT_MAX_MS = 10_000
# A silent member holds up the join phase for one session; one that died while its join waited in it is noticed one
# session after that. A little: the initial delay and a few rounds.
SETTLED_WITHIN_MS = 2 * SESSION_TIMEOUT_MAX_MS + 6_000
ROUND_MS = 1_000
DRAINING_ROUNDS = 60
CHAOS_STEPS = 200
# What befalls a client, up to each of these parts of all that may happen.
_CLIENT_FATES: tuple[tuple[float, Callable[[Client], object]], ...] = (
    (0.90, Client.die),
    (0.92, Client.leave),
    (0.94, Client.give_up_waiting),
    (0.95, Client.rejoin),
    (0.97, Client.work_on),
)


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        delay_ms = self.rng.choice((0, 0, 1_000, 3_000))
        self.coordinator = Coordinator(GroupConfig(initial_rebalance_delay_ms=delay_ms), self._reply)
        self.coordinator.commits_at_once = self.rng.random() < 0.5
        self.ends = [0] * self.rng.randint(1, 4)
        self.group_ids = ["g", "h"][: self.rng.randint(1, 2)]
        self.read: dict[str, list[int]] = {group_id: [0] * len(self.ends) for group_id in self.group_ids}
        self.stored: dict[str, GroupStored] = {}
        self.owners: dict[tuple[str, int, TopicPartition], str] = {}
        self.delayed: list[m.CommitRequest] = []
        self.open: set[Token] = set()
        self.static_share = self.rng.choice((0.0, 0.5, 1.0))
        self.clients: list[Client] = []
        for group_id in self.group_ids:
            is_cooperative = self.rng.random() < 0.5
            self.clients += [Client(self, group_id, n, is_cooperative) for n in range(self.rng.randint(1, 4))]

    # What happens

    def run(self) -> None:
        for _ in range(CHAOS_STEPS):
            self._chaos()
        self._settle()

    def _chaos(self) -> None:
        rng = self.rng
        fate = rng.random()
        client = rng.choice(self.clients)
        if fate < 0.70:
            client.step()
        elif fate < 0.78:
            self._produce()
        elif fate < 0.84:
            self.coordinator.commit()
        elif fate < 0.87:
            client.pause(rng.randint(500, 15_000))
        elif fate < 0.97:
            next(act for end, act in _CLIENT_FATES if fate < end)(client)
        elif fate < 0.985 and self.delayed:
            self.ask(None, "commit", self.delayed.pop(rng.randrange(len(self.delayed))))
        elif fate >= 0.985:
            self._crash()
        if rng.random() < 0.3:
            self.advance(rng.choice((10, 200, 1_000, 3_000)))

    def _settle(self) -> None:
        """No more faults: everybody does what a client does, until all is shared out, and then read and committed."""
        self._produce()
        for client in self.clients:
            client.pause(0)
        deadline_ms = self.coordinator.now_ms + SETTLED_WITHIN_MS
        while not self._is_shared_out():
            assert self.coordinator.now_ms < deadline_ms, f"G5: not settled: {self.clients}"
            self._round()
        for _ in range(DRAINING_ROUNDS):
            self._round()
            if self._is_drained():
                break
        assert self._is_drained(), f"G4: not everything was read and committed: {self.clients}"
        assert self._is_shared_out(), f"G5: unsettled again: {self.clients}"
        assert not self.open, f"never answered: {self.open}"
        self._check_log()

    def _round(self) -> None:
        for client in self.clients:
            for _ in range(4):
                client.step()
                self.coordinator.commit()
            client.keep_alive()
        self.advance(ROUND_MS)
        self.coordinator.commit()

    def _is_shared_out(self) -> bool:
        for group_id in self.group_ids:
            clients = [client for client in self.clients if client.group_id == group_id]
            owned = sorted(partition for client in clients for partition in client.positions)
            if not all(client.is_settled for client in clients) or owned != list(range(len(self.ends))):
                return False
            if {client.member_id for client in clients} != {each.member_id for each in self.stored[group_id].members}:
                return False
        return True

    def _is_drained(self) -> bool:
        ends = {partition: end for partition, end in enumerate(self.ends) if end}
        return all(
            self.read[group_id] == self.ends
            and {partition: offset for partition, offset in self._committed(group_id).items() if offset} == ends
            for group_id in self.group_ids
        )

    def _produce(self) -> None:
        for partition in range(len(self.ends)):
            self.ends[partition] += self.rng.randint(0, 5)

    def _crash(self) -> None:
        coordinator = self.coordinator
        self.open.clear()
        coordinator.reload(self.rng.randint(coordinator.committed, len(coordinator.log)))
        self.stored = {record.group_id: record for record in coordinator.log if isinstance(record, GroupStored)}
        self._check_log()
        for client in self.clients:
            client.give_up_waiting()

    def advance(self, duration_ms: int) -> None:
        end_ms = self.coordinator.now_ms + duration_ms
        shard = self.coordinator.shard
        while (deadline_ms := shard.next_deadline()) is not None and deadline_ms <= end_ms:
            assert deadline_ms >= self.coordinator.now_ms
            self.coordinator.now_ms = deadline_ms
            self._take(shard.tick(deadline_ms))
        self.coordinator.now_ms = end_ms

    # What clients ask and hear

    def ask(self, client: Client | None, what: str, request: Any) -> None:
        """Nobody hears the answer to a request without a client; the oracle does."""
        shard = self.coordinator.shard
        token = Token(client, what, request)
        self.open.add(token)
        if client is not None:
            client.waiting = token
        methods: dict[str, Callable[..., Any]] = {
            "join": shard.join,
            "sync": shard.sync,
            "heartbeat": shard.heartbeat,
            "leave": shard.leave,
            "commit": shard.commit_offsets,
            "fetch": shard.fetch_offsets,
        }
        self._take(methods[what](self.coordinator.now_ms, token, request))
        if what == "commit" and self.rng.random() < 0.2:
            self.delayed.append(request)

    def _take(self, effects: Any) -> None:
        for token, response in effects.replies:
            if isinstance(response, m.CommitResponse):
                self._check_commit(token.request, response)
        for record in effects.records:
            if isinstance(record, GroupStored):
                self._check_stored(record)
                self.stored[record.group_id] = record
        self.coordinator.take(effects)
        self._check_waiting()

    def _reply(self, token: Token, response: Any) -> None:
        assert token in self.open, "answered twice, or after the coordinator died"
        self.open.remove(token)
        if isinstance(response, m.SyncResponse) and response.error_code is ErrorCode.NONE:
            self._check_owners(token.request, response)
        client = token.client
        if client is not None and client.waiting is token:
            client.waiting = None
            client.hear(token.what, response)

    # The oracle

    def _check_stored(self, record: GroupStored) -> None:
        before = self.stored.get(record.group_id)
        assert before is None or record.generation >= before.generation, "a generation goes back"
        given = [partition for each in record.members for partition in assigned_partitions(each.assignment)]
        assert len(given) == len(set(given)), "G1: assigned twice"

    def _check_owners(self, request: m.SyncRequest, response: m.SyncResponse) -> None:
        who = request.group_instance_id or request.member_id
        for partition in assigned_partitions(response.assignment):
            owner = self.owners.setdefault((request.group_id, request.generation_id, partition), who)
            assert owner == who, f"G1: {partition} of generation {request.generation_id} belongs to {owner} and {who}"

    def _check_commit(self, request: m.CommitRequest, response: m.CommitResponse) -> None:
        for (topic, index, offset, *_), code in zip(request.offsets, response.errors, strict=True):
            partition = TopicPartition(topic, index)
            if code is not ErrorCode.NONE:
                continue
            stored = self.stored[request.group_id]
            assert request.generation_id == stored.generation, "G2: a commit of another generation"
            mine = next((member for member in stored.members if member.member_id == request.member_id), None)
            assert mine is not None, "G2: a commit of somebody who is no member"
            assert partition in assigned_partitions(mine.assignment), "G2: a commit of a partition not owned"
            assert offset <= self.read[request.group_id][index], "G4: committed and not read"

    def note_read(self, group_id: str, partition: int, position: int, end: int) -> None:
        read = self.read[group_id]
        assert position <= read[partition], f"G4: {group_id} skips {read[partition]} to {position} of {partition}"
        read[partition] = max(read[partition], end)

    def _check_log(self) -> None:
        shard, now_ms = self.coordinator.shard, self.coordinator.now_ms
        for group_id in self.group_ids:
            ((_, response),) = shard.fetch_offsets(now_ms, None, m.FetchOffsetsRequest(group_id)).replies
            served = {partition.partition: each.offset for partition, each in response.offsets.items()}
            assert served == self._committed(group_id), "G3: the coordinator serves something else than the log"
        self._check_memory()

    def _committed(self, group_id: str) -> dict[int, int]:
        log = self.coordinator.log
        return {
            record.partition: record.offset
            for record in log
            if isinstance(record, OffsetCommitted) and record.group_id == group_id
        }

    def _check_waiting(self) -> None:
        """What group.py promises, and that whoever does not wait for us has a session that ends."""
        state = self.coordinator.shard._state
        for group in state.groups.values():
            members = group.members.keys()
            assert group.joins.keys() <= members
            assert group.syncs.keys() <= members
            assert group.pending_syncs <= members
            assert not group.pending_joins & members
            assert group.leader in members if members else group.leader is None
            for member_id in members | group.pending_joins:
                if member_id not in group.joins and member_id not in group.syncs:
                    assert state.timers.deadline(Timer(TimerKind.SESSION, group.group_id, member_id)) is not None

    def _check_memory(self) -> None:
        """What is counted for groups is what they take."""
        state = self.coordinator.shard._state
        counted = 0
        for group in state.groups.values():
            members_bytes = sum(each.size_bytes for each in group.members.values())
            assert group.members_bytes == members_bytes + sum(map(pending_bytes, group.pending_joins))
            counted += group.size_bytes
            for record in state.offsets.of_group(group.group_id).values():
                counted += OFFSET_OVERHEAD_BYTES + TEXT_CHARACTER_BYTES * len(record.metadata)
        assert self.coordinator.budget.used_bytes == counted
