"""Random histories of a share group: members come and go, responses are lost, topics change, the coordinator moves.

Checked after every step: what is in memory is what a replay of the log makes; epochs never go down; each member knows
exactly what the group says that it has, unless a response to it was lost. Checked at the end, when all is quiet: every
partition that can be read has ceil(members / partitions) members at most and one at least, every member at least one.
`FLOWSTONE_SHARE_GROUP_SEEDS` is the number of histories.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from flowstone.coordinator.groups.config import GroupConfig
from flowstone.coordinator.groups.share import messages as m
from flowstone.coordinator.groups.share.group import ShareGroup
from flowstone.coordinator.groups.share.offsets import CHANGE_TIMEOUT_MS, Begun
from flowstone.coordinator.groups.share_records import TopicPartitions
from flowstone.errors import ErrorCode
from tests.unit.coordinator.groups.harness import Coordinator
from tests.unit.coordinator.groups.share.interpreter import NamedTopics

SEEDS = int(os.environ.get("FLOWSTONE_SHARE_GROUP_SEEDS", "40"))
STEPS = 150
NAMES = [f"m{index}" for index in range(6)]
TOPICS = ["t", "u", "v"]
FENCED = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND)


class Member:
    """A client as the protocol wants it: it joins again when it is fenced, and repeats what was not answered."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.topics: tuple[str, ...] = ()
        self.assigned: dict[bytes, tuple[int, ...]] = {}
        self.tells_topics = True
        self.lost = 0  # responses, one after the other
        self.is_certain = False  # no response since the last change was lost


class History:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.topics = NamedTopics()
        self.counts = {"t": 2, "u": 1}
        self.topics.become(self.counts)
        self.coordinator = Coordinator(GroupConfig(), self._reply, self.topics)
        self.members: dict[str, Member] = {}
        self.tasks: list[m.InitializeStates] = []
        self.resets: list[TopicPartitions] = []
        self.deletions: list[frozenset[bytes]] = []
        self.answer: Any = None
        self.epoch = 0

    @property
    def group(self) -> ShareGroup | None:
        group = self.coordinator.shard._state.groups.get("g")
        assert group is None or isinstance(group, ShareGroup)
        return group

    def step(self) -> None:
        weights = {
            self.join: 10,
            self.beat: 40,
            self.leave: 4,
            self.lose: 5,
            self.initialize: 12,
            self.fail: 3,
            self.wait: 15,
            self.change_topics: 3,
            self.move: 2,
            self.reset: 1,
            self.delete: 1,
            self.end_change: 3,
        }
        self.random.choices(tuple(weights), tuple(weights.values()))[0]()
        self.check()

    def join(self) -> None:
        absent = [name for name in NAMES if name not in self.members]
        if absent:
            member = Member(self.random.choice(absent))
            self.members[member.name] = member
            member.topics = tuple(self.random.sample(TOPICS, self.random.randint(1, 3)))
            self.send(member)

    def beat(self, member: Member | None = None, *, is_lost: bool = False) -> None:
        member = member or (self.random.choice(list(self.members.values())) if self.members else None)
        if member is None:
            return
        if self.random.random() < 0.05:
            member.topics, member.tells_topics = tuple(self.random.sample(TOPICS, self.random.randint(1, 3))), True
        self.send(member, is_lost=is_lost)

    def lose(self) -> None:
        self.beat(is_lost=True)

    def leave(self) -> None:
        if self.members:
            member = self.members.pop(self.random.choice(list(self.members)))
            self.ask(m.ShareHeartbeatRequest("g", member.name, -1))

    def send(self, member: Member, *, is_lost: bool = False) -> None:
        tells = member.tells_topics or member.epoch == 0
        answer = self.ask(
            m.ShareHeartbeatRequest("g", member.name, member.epoch, None, member.topics if tells else None)
        )
        if is_lost:
            member.is_certain = False
            member.lost += 1
            member.tells_topics = self.random.random() < 0.5
        elif answer.error_code in FENCED:
            assert member.lost > 1 or answer.error_code is not FENCED[0], "one lost response fences nobody"
            member.lost = 0
            member.epoch, member.assigned, member.tells_topics = 0, {}, True
        else:
            assert answer.error_code is ErrorCode.NONE
            assert answer.member_epoch >= member.epoch
            member.epoch, member.tells_topics, member.is_certain = answer.member_epoch, False, True
            member.lost = 0
            if answer.assignment is not None:
                member.assigned = dict(answer.assignment)

    def ask(self, request: m.ShareHeartbeatRequest) -> Any:
        self.take(self.coordinator.shard.share_heartbeat(self.coordinator.now_ms, "heartbeat", request))
        return self.answer

    def initialize(self) -> None:
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            shard = self.coordinator.shard
            self.take(shard.share_states_initialized(self.coordinator.now_ms, "g", task.partitions))

    def fail(self) -> None:
        self.tasks = []
        self.take(self.coordinator.shard.share_states_failed(self.coordinator.now_ms, "g"))

    def wait(self) -> None:
        self.coordinator.advance(self.random.choice((100, 1000, 5000, 20_000)))

    def change_topics(self) -> None:
        name = self.random.choice(TOPICS)
        if name in self.counts and self.random.random() < 0.4:
            del self.counts[name]
        else:
            self.counts[name] = self.counts.get(name, 0) + self.random.randint(1, 3)
        gone = self.topics.become(self.counts)
        self.take(self.coordinator.shard.remove_topics(self.coordinator.now_ms, gone))

    def move(self) -> None:
        self.tasks = []
        self.coordinator.reload()

    # What operators do, in two steps of which the second may be missing

    def reset(self) -> None:
        topics = {name: tuple(range(count)) for name, count in self.counts.items() if self.random.random() < 0.6}
        begun = self.ask_operator(self.coordinator.shard.begin_share_reset, topics)
        if isinstance(begun, Begun):
            self.resets.append(begun.partitions)

    def delete(self) -> None:
        known = [topic for name in self.counts if (topic := self.topics.find(name)) is not None]
        some = frozenset(topic.topic_id for topic in known if self.random.random() < 0.6)
        begun = self.ask_operator(self.coordinator.shard.begin_share_deletion, self.random.choice((some, None)))
        if isinstance(begun, Begun):
            self.deletions.append(frozenset(begun.partitions))

    def end_change(self) -> None:
        if self.resets:
            self.ask_operator(self.coordinator.shard.end_share_reset, self.resets.pop())
        if self.deletions:
            self.ask_operator(self.coordinator.shard.end_share_deletion, self.deletions.pop())

    def ask_operator(self, method: Any, argument: Any) -> Any:
        is_empty = self.group is None or self.group.is_empty
        self.take(method(self.coordinator.now_ms, "operator", "g", argument))
        if isinstance(self.answer, Begun):
            assert is_empty, "a group with members is not changed"
        return self.answer

    def take(self, effects: Any) -> None:
        self.tasks += effects.tasks
        keys = [(type(each), getattr(each, "key", None), getattr(each, "member_id", "")) for each in effects.records]
        assert len(set(keys)) == len(keys), "one record for each key and call"
        self.coordinator.take(effects)

    def _reply(self, token: Any, response: Any) -> None:
        self.answer = response

    # What must be true

    def check(self) -> None:
        group = self.group
        if group is None:
            self.epoch = 0
            return
        assert group.epoch >= self.epoch
        self.epoch = group.epoch
        assert group.assignment_epoch <= group.epoch
        assert group.members_bytes == sum(member.size_bytes for member in group.members_by_id.values())
        for member in group.members_by_id.values():
            assert 0 < member.epoch <= group.assignment_epoch
            known = self.members.get(member.stored.member_id)
            if known is not None and known.is_certain and known.epoch == member.epoch:
                assert known.assigned == member.assigned
        self.check_replay(group)

    def check_replay(self, group: ShareGroup) -> None:
        other = Coordinator(GroupConfig(), lambda token, response: None, self.topics)
        other.log = list(self.coordinator.log)
        other._replay(other.log)
        copy = other.shard._state.groups["g"]
        assert isinstance(copy, ShareGroup)
        same = ("epoch", "assignment_epoch", "topic_counts", "members_bytes", "states_bytes")
        for name in (*same, "initializing", "initialized", "deleting"):
            assert getattr(copy, name) == getattr(group, name), name
        assert {key: (each.stored, each.epoch, each.previous_epoch, each.assigned, each.target)
                for key, each in copy.members_by_id.items()} == {
            key: (each.stored, each.epoch, each.previous_epoch, each.assigned, each.target)
            for key, each in group.members_by_id.items()
        }  # fmt: skip

    def settle(self) -> None:
        steps = 12
        for _ in range(steps):
            for member in self.members.values():
                self.send(member)
            self.initialize()
            self.coordinator.advance(2 * CHANGE_TIMEOUT_MS // steps)
        self.check()
        if not self.members:
            return
        group = self.group
        assert group is not None
        assert set(group.members_by_id) == set(self.members)
        sharers: dict[tuple[bytes, int], int] = {}
        for member in self.members.values():
            readable = {self.topics.find(name) for name in member.topics} - {None}
            ids = {topic.topic_id: topic.partition_count for topic in readable if topic is not None}
            assert set(member.assigned) <= set(ids)
            assert bool(member.assigned) == bool(ids), "a member has something if there is anything for it"
            for topic_id, indexes in member.assigned.items():
                assert all(index < ids[topic_id] for index in indexes)
                for index in indexes:
                    sharers[topic_id, index] = sharers.get((topic_id, index), 0) + 1
        wanted = {name for member in self.members.values() for name in member.topics}
        for name in wanted & set(self.counts):
            topic = self.topics.find(name)
            assert topic is not None
            for index in range(topic.partition_count):
                assert sharers.get((topic.topic_id, index)), f"nobody reads {name}-{index}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_share_group_keeps_its_promises(seed: int) -> None:
    history = History(seed)
    for _ in range(STEPS):
        history.step()
    history.settle()
