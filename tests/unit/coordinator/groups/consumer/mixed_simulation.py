"""Random lives of a group whose members use both protocols: it is converted up and down again and again.

The promises are those of `simulation` while it is a consumer group. In addition no request may fail unexpectedly, in
either kind of group, and the stored records must give the same kind of group with the same members.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flowstone.coordinator.groups import messages as classic
from flowstone.coordinator.groups.classic.consumer_protocol import assigned_partitions
from flowstone.coordinator.groups.classic.group import Group, GroupState
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from tests.unit.coordinator.groups.consumer.simulation import World
from tests.unit.coordinator.groups.harness import assignment, subscription, written

CLASSIC_MAX = 3
REJOINS = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.MEMBER_ID_REQUIRED)


@dataclass(eq=False)
class ClassicClient:
    name: str
    is_eager: bool
    instance_id: str | None
    member_id: str = ""
    generation: int = -1
    has: frozenset[TopicPartition] = frozenset()
    must_join: bool = True
    is_waiting: bool = False  # for the answer to a join or sync


@dataclass(eq=False)
class Asked:
    client: ClassicClient
    what: str


@dataclass(eq=False)
class MixedWorld(World):
    old: dict[str, ClassicClient] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.coordinator._on_reply = self.reply

    def reply(self, token: Any, response: Any) -> None:
        if isinstance(token, Asked):
            getattr(self, f"hear_{token.what}")(token.client, response)
        else:
            self.answers.append(response)

    def step(self) -> None:
        if self.random.random() < 0.55:
            super().step()
            return
        actions = [self.start_classic] * 2
        if self.old:
            actions += [self.do_classic] * 20 + [self.leave_classic, self.crash_classic, self.leave_modern]
        self.random.choice(actions)()

    def start_classic(self) -> None:
        if len(self.old) < CLASSIC_MAX:
            self.names += 1
            instance = f"i{self.names}" if self.random.random() < 0.3 else None
            self.old[f"c{self.names}"] = ClassicClient(f"c{self.names}", self.random.random() < 0.5, instance)

    def crash_classic(self) -> None:
        del self.old[self.random.choice(sorted(self.old))]

    def leave_modern(self) -> None:
        if self.clients:
            self.leave()

    def leave_classic(self) -> None:
        client = self.old.pop(self.random.choice(sorted(self.old)))
        if client.member_id:
            request = classic.LeaveRequest("g", (classic.LeavingMember(client.member_id, client.instance_id),))
            self.ask(client, "leave", self.coordinator.shard.leave, request)

    def do_classic(self) -> None:
        client = self.old[self.random.choice(sorted(self.old))]
        if client.is_waiting:
            return
        if client.must_join:
            if client.is_eager:
                client.has = frozenset()
            metadata = subscription(["t", "u"], "", written(client.has))
            request = classic.JoinRequest(
                "g",
                45_000,
                30_000,
                "consumer",
                (("range", metadata),),
                client.member_id,
                client.instance_id,
                client.name,
            )
            self.ask(client, "join", self.coordinator.shard.join, request)
        else:
            beat = classic.HeartbeatRequest("g", client.member_id, client.generation, client.instance_id)
            self.ask(client, "heartbeat", self.coordinator.shard.heartbeat, beat)

    def ask(self, client: ClassicClient, what: str, method: Any, request: Any) -> None:
        client.is_waiting = True
        self.coordinator.take(method(self.coordinator.now_ms, Asked(client, what), request))

    def hear_leave(self, client: ClassicClient, response: classic.LeaveResponse) -> None:
        client.is_waiting = False

    def hear_join(self, client: ClassicClient, response: classic.JoinResponse) -> None:
        client.is_waiting = False
        if response.error_code is not ErrorCode.NONE:
            self.refused(client, response.error_code)
            client.member_id = response.member_id if response.error_code in REJOINS else ""
            return
        client.member_id, client.generation, client.must_join = response.member_id, response.generation_id, False
        shares: dict[str, list[TopicPartition]] = {each.member_id: [] for each in response.members}
        if shares:  # the leader of a classic group
            everything = [TopicPartition(name, index) for name in "tu" for index in range(self.counts[name])]
            for number, partition in enumerate(everything):
                shares[sorted(shares)[number % len(shares)]].append(partition)
        told = tuple((member_id, assignment(written(frozenset(share)))) for member_id, share in shares.items())
        request = classic.SyncRequest("g", client.member_id, client.generation, client.instance_id, assignments=told)
        self.ask(client, "sync", self.coordinator.shard.sync, request)

    def hear_sync(self, client: ClassicClient, response: classic.SyncResponse) -> None:
        client.is_waiting = False
        if response.error_code is not ErrorCode.NONE:
            self.refused(client, response.error_code)
            return
        before, client.has = client.has, assigned_partitions(response.assignment)
        client.must_join = bool(before - client.has) and not client.is_eager

    def hear_heartbeat(self, client: ClassicClient, response: classic.HeartbeatResponse) -> None:
        client.is_waiting = False
        if response.error_code is not ErrorCode.NONE:
            self.refused(client, response.error_code)

    def refused(self, client: ClassicClient, error: ErrorCode) -> None:
        assert error is not ErrorCode.UNKNOWN_SERVER_ERROR
        client.must_join = True
        if error not in REJOINS:
            client.member_id, client.generation, client.has = "", -1, frozenset()

    def check(self) -> None:
        if self.group is None:
            self.epochs = (0, 0)  # a group that was empty in between begins anew
        super().check()

    def reload(self) -> None:
        """Move the coordinator: waiting requests are told, and what was not stored is forgotten."""
        group = self.coordinator.shard._state.groups.get("g")
        is_settled = not isinstance(group, Group) or group.state in (GroupState.STABLE, GroupState.EMPTY)
        before = self.kind_and_members() if is_settled else None
        super().reload()
        for client in self.old.values():
            client.is_waiting = False
        assert before is None or before == self.kind_and_members(), "P4: the stored records give another group"

    def kind_and_members(self) -> tuple[str, list[str]]:
        group = self.coordinator.shard._state.groups.get("g")
        if group is None or not group.members:
            return "", []
        return group.type, sorted(group.members)

    def commit(self) -> None:
        """Commits are those of `simulation`, which have no classic group."""
        if self.group is not None:
            super().commit()

    def send_commit(self, partition: Any, request: Any) -> None:
        if self.group is not None:
            super().send_commit(partition, request)

    def settle(self) -> None:
        """Classic members leave, and the group settles; or, without any others, nothing more is asked of it."""
        for name in sorted(self.old):
            client = self.old.pop(name)
            if client.member_id:
                request = classic.LeaveRequest("g", (classic.LeavingMember(client.member_id, client.instance_id),))
                self.ask(client, "leave", self.coordinator.shard.leave, request)
        self.coordinator.advance(50_000)
        super().settle()
