"""Random lives of a consumer group: members that are slow, crash, leave, lose and repeat heartbeats, and a coordinator
that moves.

The promises:
P1  a partition has one owner: of all members that have it assigned or have not given it up, and in each epoch of all
    clients that believe they have it
P2  a client is never told to give up a partition that stays in its target
P3  a commit is accepted only from the owner, and the owner in its own epoch is never refused
P4  the stored records give the state in memory
P5  epochs never fall, and no member is ahead of the assignment
P6  when faults end, the group settles: every partition is owned, evenly, and every client knows what it has
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from flowstone.config import GroupSettings
from flowstone.coordinator.groups.config import GroupConfig
from flowstone.coordinator.groups.consumer.group import ConsumerGroup
from flowstone.coordinator.groups.consumer.messages import ConsumerHeartbeatRequest, ConsumerHeartbeatResponse
from flowstone.coordinator.groups.consumer_records import Partition
from flowstone.coordinator.groups.messages import CommitRequest, CommitResponse
from flowstone.errors import ErrorCode
from tests.unit.coordinator.groups.consumer.named_topics import NamedTopics
from tests.unit.coordinator.groups.harness import Coordinator

STEPS, CLIENTS_MAX, QUIET_ROUNDS_MAX, ABSENT_ROUNDS = 120, 5, 60, 10
TOPICS = ("t", "u")


@dataclass(eq=False)
class Client:
    member_id: str
    instance_id: str | None
    topics: tuple[str, ...]
    epoch: int = 0
    has: frozenset[Partition] = frozenset()
    told: frozenset[Partition] | None = None  # an assignment that it has not carried out yet
    is_joining: bool = True
    must_say_all: bool = False  # its last request was not answered
    has_news: bool = False  # what it has is other than it said
    says_topics: bool = False
    beats: int = 0


@dataclass(eq=False)
class World:
    seed: int
    clients: dict[str, Client] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=lambda: {"t": 4, "u": 3})

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.topics = NamedTopics()
        self.topics.become(self.counts)
        self.answers: list[Any] = []
        self.coordinator = Coordinator(GroupConfig(), lambda _, response: self.answers.append(response), self.topics)
        self.coordinator.settings = lambda group_id: GroupSettings()
        self.coordinator.reload()
        self.names = 0
        self.late: list[tuple[Partition, CommitRequest]] = []
        self.epochs: tuple[int, int] = (0, 0)
        self.revoking: frozenset[Partition] = frozenset()  # what the client that sends a heartbeat must give up

    @property
    def group(self) -> ConsumerGroup | None:
        group = self.coordinator.shard._state.groups.get("g")
        return group if isinstance(group, ConsumerGroup) else None

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
            self.check()
        self.settle()

    # One step

    def step(self) -> None:
        actions = [self.start] * 2 + [self.advance] * 4 + [self.reload, self.change_topics]
        if self.clients:
            actions += [self.beat] * 20 + [self.carry_out] * 10 + [self.commit] * 6 + [self.commit_late] * 3
            actions += [self.leave, self.crash, self.restart_static, self.resubscribe]
        self.random.choice(actions)()

    def pick(self) -> Client:
        return self.random.choice(list(self.clients.values()))

    def start(self) -> None:
        if len(self.clients) < CLIENTS_MAX:
            self.names += 1
            name = f"m{self.names}"
            instance = f"i{self.names}" if self.random.random() < 0.3 else None
            self.clients[name] = Client(name, instance, self.random_topics())

    def random_topics(self) -> tuple[str, ...]:
        return self.random.choice([("t",), ("t", "u"), ("t", "u")])

    def advance(self) -> None:
        self.coordinator.advance(self.random.choice([100, 600, 1500, 5000]))

    def reload(self) -> None:
        before = self.snapshot()
        self.coordinator.reload()
        assert self.snapshot() == before, "P4: the stored records give another state"

    def change_topics(self) -> None:
        name = self.random.choice(TOPICS)
        self.counts[name] += self.random.random() < 0.5
        self.topics.become(self.counts)

    def crash(self) -> None:
        """Forget a client. Its member stays until its session ends."""
        if self.random.random() < 0.5:
            del self.clients[self.pick().member_id]

    def leave(self) -> None:
        client = self.pick()
        self.send(client, ConsumerHeartbeatRequest("g", client.member_id, -1, client.instance_id))
        del self.clients[client.member_id]

    def restart_static(self) -> None:
        client = self.pick()
        if client.instance_id is None or client.is_joining:
            return
        if self.send(client, ConsumerHeartbeatRequest("g", client.member_id, -2, client.instance_id)).error_code:
            return
        del self.clients[client.member_id]
        self.names += 1
        name = f"m{self.names}"
        self.clients[name] = Client(name, client.instance_id, client.topics)

    def resubscribe(self) -> None:
        client = self.pick()
        if not client.is_joining:
            client.topics, client.says_topics = self.random_topics(), True

    def carry_out(self) -> None:
        """Give up and take over partitions, as the last answer said; only now it has them."""
        client = self.pick()
        if client.told is not None:
            client.has, client.told, client.has_news = client.told, None, True

    def beat(self, client: Client | None = None, *, is_reliable: bool = False) -> None:
        client = client or self.pick()
        client.beats += 1
        request, group = self.request(client), self.group
        member = None if group is None else group.members_by_id.get(client.member_id)
        self.revoking = frozenset() if member is None else frozenset(member.revoking)
        fault = self.random.random() if not is_reliable else 1.0
        if fault < 0.08:  # the request is lost
            client.must_say_all = True
            return
        response = self.send(client, request)
        if fault < 0.16:  # the answer is lost
            client.must_say_all = True
            return
        if fault < 0.24:  # it arrives twice, and both answers are heard
            self.hear(client, response)
            response = self.send(client, request)
            if client.is_joining:
                return  # the first answer made it join again; it ignores the second one
        self.hear(client, response)

    def request(self, client: Client) -> ConsumerHeartbeatRequest:
        says_all = client.must_say_all or client.is_joining
        return ConsumerHeartbeatRequest(
            "g",
            client.member_id,
            0 if client.is_joining else client.epoch,
            client.instance_id,
            rebalance_timeout_ms=30_000 if says_all else -1,
            subscribed_topics=client.topics if says_all or client.says_topics else None,
            owned=frozenset() if client.is_joining else client.has if says_all or client.has_news else None,
            client_id=client.member_id,
        )

    def send(self, client: Client, request: ConsumerHeartbeatRequest) -> ConsumerHeartbeatResponse:
        self.answers.clear()
        shard, now_ms = self.coordinator.shard, self.coordinator.now_ms
        self.coordinator.take(shard.consumer_heartbeat(now_ms, object(), request))
        (response,) = self.answers
        assert isinstance(response, ConsumerHeartbeatResponse)
        return response

    def hear(self, client: Client, response: ConsumerHeartbeatResponse) -> None:
        client.must_say_all = False
        if response.error_code in (
            ErrorCode.FENCED_MEMBER_EPOCH,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.GROUP_ID_NOT_FOUND,
        ):
            client.has, client.told, client.epoch, client.is_joining = frozenset(), None, 0, True
            return
        if response.error_code in (ErrorCode.UNRELEASED_INSTANCE_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.instance_id = None
            return
        assert response.error_code is ErrorCode.NONE, response
        client.is_joining, client.has_news, client.says_topics = False, False, False
        client.epoch = response.member_epoch
        if response.assigned is not None:
            self.check_kept(client, response.assigned)
            client.told = response.assigned

    def check_kept(self, client: Client, assigned: frozenset[Partition]) -> None:
        group = self.group
        assert group is not None
        names = {self.topics.id_of(name) for name in client.topics}
        lost = client.has - assigned - self.revoking
        kept = {each for each in lost if each in group.target_of(client.member_id) and each[0] in names}
        assert not kept, f"P2: {client.member_id} is told to give up {kept}, which it keeps"

    def commit(self) -> None:
        """Commit what a client has, now or, as a request that was held up on its way, later."""
        client = self.pick()
        if client.is_joining or not client.has:
            return
        topic_id, index = partition = self.random.choice(sorted(client.has))
        offsets = [(self.topics.former_name(topic_id), index, 1, -1, None)]
        request = CommitRequest("g", offsets, client.member_id, client.epoch, client.instance_id)
        if self.random.random() < 0.5:
            self.late.append((partition, request))
        else:
            self.send_commit(partition, request)

    def commit_late(self) -> None:
        if self.late:
            self.send_commit(*self.late.pop(self.random.randrange(len(self.late))))

    def send_commit(self, partition: Partition, request: CommitRequest) -> None:
        self.answers.clear()
        shard, now_ms, group = self.coordinator.shard, self.coordinator.now_ms, self.group
        owner = None if group is None else group.owners.get(partition)
        member = None if group is None else group.members_by_id.get(request.member_id)
        take_from = shard.commit_offsets(now_ms, object(), request)
        self.coordinator.take(take_from)
        (response,) = self.answers
        assert isinstance(response, CommitResponse)
        error = response.errors[0]
        if error is ErrorCode.NONE:
            assert owner in (None, request.member_id), f"P3: {request.member_id} commits what {owner} owns"
        elif owner == request.member_id and member is not None and member.epoch == request.generation_id:
            raise AssertionError(f"P3: the owner may not commit: {error.name}")

    # What must hold

    def check(self) -> None:
        group = self.group
        if group is None:
            return
        holders: dict[Partition, str] = {}
        for member in group.members_by_id.values():
            assert member.epoch <= group.assignment_epoch <= group.epoch, "P5: a member is ahead"
            for partition in (*member.assigned, *member.revoking):
                other = holders.setdefault(partition, member.member_id)
                assert other == member.member_id, f"P1: {partition} belongs to {other} and {member.member_id}"
        assert holders == group.owners, "P1: the owners are others than the members' partitions say"
        believed: dict[tuple[Partition, int], str] = {}
        for client in self.clients.values():
            for partition in client.has:
                other = believed.setdefault((partition, client.epoch), client.member_id)
                assert other == client.member_id, f"P1: two clients have {partition} in epoch {client.epoch}"
        epochs = group.epoch, group.assignment_epoch
        assert epochs >= self.epochs or group.epoch <= 2, f"P5: the epochs fell from {self.epochs} to {epochs}"
        self.epochs = epochs

    def snapshot(self) -> Any:
        group = self.group
        if group is None:
            return None
        members = {
            each.member_id: (
                each.stored,
                each.epoch,
                each.previous_epoch,
                each.state,
                dict(each.assigned),
                dict(each.revoking),
            )
            for each in group.members_by_id.values()
        }
        targets = {member_id: target for member_id, target in group.targets.items() if target}
        return (group.epoch, group.assignment_epoch, group.metadata_hash, members, targets, dict(group.owners))

    def settle(self) -> None:
        """No more faults: everybody sends heartbeats and does what they are told."""
        if not self.clients:
            return
        for number in range(QUIET_ROUNDS_MAX):
            for client in list(self.clients.values()):
                if client.told is not None:
                    client.has, client.told, client.has_news = client.told, None, True
                self.beat(client, is_reliable=True)
                self.check()
            # Those who crashed are removed at the end of their sessions.
            is_over = number > ABSENT_ROUNDS
            self.coordinator.advance(1_000 if is_over else 5_000)
            if is_over and self.has_settled():
                break
        group = self.group
        assert group is not None
        assert self.has_settled(), f"P6: the group is {group.state_name}"
        subscribed = {name for client in self.clients.values() for name in client.topics}
        wanted = {(self.topics.id_of(name), index) for name in subscribed for index in range(self.counts[name])}
        assert set(group.owners) == wanted, "P6: partitions without an owner, or too many"
        sizes = [len(client.has) for client in self.clients.values()]
        if len({client.topics for client in self.clients.values()}) == 1:
            assert max(sizes) - min(sizes) <= 1, f"P6: uneven, {sizes}"

    def has_settled(self) -> bool:
        group = self.group
        if group is None or group.state_name != "Stable" or set(group.members_by_id) != set(self.clients):
            return False
        return all(
            client.told is None and client.has == frozenset(group.members_by_id[client.member_id].assigned)
            for client in self.clients.values()
        )
