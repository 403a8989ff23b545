"""A consumer as clients are written: it joins, leads if it must, reads what it is given and commits what it has read.

Eager clients give everything up before they join again; cooperative ones keep it, name it in their metadata, and join
once more when something is taken from them. A client asks one thing at a time. A reply to an earlier life, or to a
request it has given up on, is not heard.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowstone.coordinator.groups import messages as m
from flowstone.coordinator.groups.classic.consumer_protocol import assigned_partitions, owned_partitions
from flowstone.coordinator.groups.records import NO_LEADER_EPOCH
from flowstone.errors import ErrorCode
from flowstone.types import TopicPartition
from tests.unit.coordinator.groups.harness import assignment, subscription

if TYPE_CHECKING:
    from tests.unit.coordinator.groups.simulation import World

TOPIC = "t"


@dataclass(eq=False)
class Token:
    client: Client | None
    what: str
    request: Any


class Client:
    def __init__(self, world: World, group_id: str, number: int, is_cooperative: bool) -> None:
        rng = world.rng
        self.world = world
        self.group_id = group_id
        self.name = f"{group_id}{number}"
        self.instance_id = f"i-{self.name}" if rng.random() < world.static_share else None
        self.version = rng.choice((3, 5, 9)) if self.instance_id is None else rng.choice((5, 9))
        self.session_timeout_ms = rng.choice((6_000, 10_000))
        self.rebalance_timeout_ms = rng.choice((6_000, 15_000))
        self.is_cooperative = is_cooperative
        self.protocol = "cooperative-sticky" if is_cooperative else "range"
        self.paused_until_ms = 0
        self._begin()

    def __repr__(self) -> str:
        return f"{self.name}({self.member_id} {self.phase} generation={self.generation} {self.positions})"

    def _begin(self) -> None:
        self.member_id = ""
        self.generation = -1
        self.assigned_generation = -1
        self.phase = "join"
        self.waiting: Token | None = None
        self.positions: dict[int, int | None] = {}  # None until the committed offset is known
        self.assignments: tuple[tuple[str, bytes], ...] = ()

    @property
    def is_settled(self) -> bool:
        return self.phase == "read" and self.waiting is None

    # What befalls it

    def pause(self, duration_ms: int) -> None:
        self.paused_until_ms = self.world.coordinator.now_ms + duration_ms

    def die(self) -> None:
        """And come back with nothing but its configuration."""
        self._begin()
        self.pause(self.world.rng.randint(0, self.world.rng.choice((500, 12_000))))

    def leave(self) -> None:
        if self.member_id and self.waiting is None:
            leaving = m.LeavingMember(self.member_id, self.instance_id)
            self.world.ask(None, "leave", m.LeaveRequest(self.group_id, (leaving,)))
            self.die()

    def give_up_waiting(self) -> None:
        """Its request timed out, or its connection broke."""
        self.waiting = None

    def rejoin(self) -> None:
        if self.phase == "read" and self.waiting is None:
            self._join_again()

    def work_on(self) -> None:
        """A cooperative client reads and commits while it joins, but not in a generation it has no assignment in."""
        is_awake = self.world.coordinator.now_ms >= self.paused_until_ms
        if self.is_cooperative and is_awake and self.generation == self.assigned_generation:
            self._read()
            if (request := self._offsets()) is not None:
                self.world.ask(None, "commit", request)

    # What it does

    def step(self) -> None:
        if self.waiting is not None or self.world.coordinator.now_ms < self.paused_until_ms:
            return
        if self.phase == "join":
            self._join()
        elif self.phase == "sync":
            identity = (self.group_id, self.member_id, self.generation, self.instance_id)
            self.world.ask(self, "sync", m.SyncRequest(*identity, assignments=self.assignments))
        elif None in self.positions.values():
            self._fetch_positions()
        else:
            self.world.rng.choice((self._heartbeat, self._read, self._read_and_commit))()

    def keep_alive(self) -> None:
        if self.is_settled:
            self._heartbeat()

    def _join(self) -> None:
        owned = _named(self.positions)
        request = m.JoinRequest(
            self.group_id,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            "consumer",
            ((self.protocol, subscription([TOPIC], owned=owned)),),
            self.member_id,
            self.instance_id,
            self.name,
            member_id_required=self.version >= 4,
            skip_assignment_supported=self.version >= 9,
        )
        self.world.ask(self, "join", request)

    def _heartbeat(self) -> None:
        request = m.HeartbeatRequest(self.group_id, self.member_id, self.generation, self.instance_id)
        self.world.ask(self, "heartbeat", request)

    def _fetch_positions(self) -> None:
        wanted = tuple(TopicPartition(TOPIC, each) for each, position in self.positions.items() if position is None)
        self.world.ask(self, "fetch", m.FetchOffsetsRequest(self.group_id, wanted))

    def _read(self) -> None:
        for partition, position in self.positions.items():
            if position is not None:
                end = max(position, min(self.world.ends[partition], position + self.world.rng.randint(0, 8)))
                self.world.note_read(self.group_id, partition, position, end)
                self.positions[partition] = end

    def _read_and_commit(self) -> None:
        self._read()
        if (request := self._offsets()) is not None:
            self.world.ask(self, "commit", request)

    def _offsets(self) -> m.CommitRequest | None:
        offsets = tuple(
            (TOPIC, partition, position, NO_LEADER_EPOCH, "note" * (position % 3))
            for partition, position in self.positions.items()
            if position is not None
        )
        if not offsets:
            return None
        return m.CommitRequest(self.group_id, offsets, self.member_id, self.generation, self.instance_id)

    def _join_again(self) -> None:
        if not self.is_cooperative:
            self.positions = {}
        self.phase = "join"

    # What it hears

    def hear(self, what: str, response: Any) -> None:
        code = response.error_code if what != "commit" else response.errors[0]
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self._begin()
        elif code is ErrorCode.ILLEGAL_GENERATION:
            self.positions = {}
            self._join_again()
        elif code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._join_again()
        elif code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
        else:
            assert code is ErrorCode.NONE, code
            getattr(self, f"_hear_{what}")(response)

    def _hear_join(self, response: m.JoinResponse) -> None:
        self.member_id, self.generation = response.member_id, response.generation_id
        self.phase = "sync"
        self.assignments = ()
        if response.leader == response.member_id and not response.skip_assignment:
            self.assignments = _assign(response.members, len(self.world.ends), self.is_cooperative)

    def _hear_sync(self, response: m.SyncResponse) -> None:
        assigned = {each.partition for each in assigned_partitions(response.assignment)}
        kept = {each: position for each, position in self.positions.items() if each in assigned}
        has_lost = len(kept) < len(self.positions)
        self.positions = dict.fromkeys(assigned, None) | kept
        self.phase, self.assigned_generation = "read", self.generation
        if has_lost:
            self._join_again()

    def _hear_fetch(self, response: m.FetchOffsetsResponse) -> None:
        for partition, committed in response.offsets.items():
            if self.positions.get(partition.partition, 0) is None:
                self.positions[partition.partition] = max(committed.offset, 0)

    def _hear_heartbeat(self, response: m.HeartbeatResponse) -> None:
        pass

    def _hear_commit(self, response: m.CommitResponse) -> None:
        pass


def _assign(members: tuple[m.JoinedMember, ...], count: int, is_cooperative: bool) -> tuple[tuple[str, bytes], ...]:
    """Round robin; a cooperative leader gives nobody what somebody else still has."""
    given: dict[str, list[int]] = {member.member_id: [] for member in members}
    owners = {
        each.partition: member.member_id
        for member in members
        for each in owned_partitions(member.metadata)
        if is_cooperative
    }
    member_ids = sorted(given)
    for partition in range(count):
        member_id = member_ids[partition % len(member_ids)]
        if owners.get(partition, member_id) == member_id:
            given[member_id].append(partition)
    return tuple((member_id, assignment(_named(partitions))) for member_id, partitions in given.items())


def _named(partitions: Iterable[int]) -> str:
    return ",".join(f"{TOPIC}-{partition}" for partition in sorted(partitions))
