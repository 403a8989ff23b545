"""Groups whose members have a rebalance timeout of 100 ms (max.poll.interval.ms=100) settle all the same.

A client hears of a rebalance with its next heartbeat, every three seconds by default. A join phase of 100 ms is over
long before: everybody but the member that caused it is dropped, comes back later one by one, and each return drops the
others again. Requests and answers take random times here, as on a busy machine; everything follows from the seed.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from flowstone.coordinator.groups import messages as m
from flowstone.coordinator.groups.classic import rebalancing
from flowstone.coordinator.groups.config import GroupConfig
from flowstone.errors import ErrorCode
from tests.unit.coordinator.groups.harness import START_MS, Coordinator, assignment, subscription

HEARTBEAT_MS = 3_000
REBALANCE_TIMEOUT_MS = 100
SESSION_MS = 45_000
SETTLED_WITHIN_MS = 60_000
SETTLED_FOR_MS = 7_000  # two rounds of heartbeats
SEEDS = range(40)


class World:
    """A coordinator and members on a virtual clock, with a delay on every way."""

    def __init__(self, seed: int, members: int, initial_delay_ms: int, latency_max_ms: int) -> None:
        self.rng = random.Random(seed)
        self.latency_max_ms = latency_max_ms
        config = GroupConfig(initial_rebalance_delay_ms=initial_delay_ms)
        self.coordinator = Coordinator(config, self._reply)
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.members = [Member(self, number) for number in range(members)]
        for member in self.members:
            self.later(self.rng.randint(0, 2_000), member.join)

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.coordinator.now_ms + delay_ms, next(self._order), action))

    def ask(self, method: str, request: Any, hear: Callable[[Any], None]) -> None:
        """Send a request, and have its answer heard, each after a random time."""
        self.later(self.latency(), lambda: self._arrived(method, request, hear))

    def latency(self) -> int:
        """Return a delay: mostly short, now and then as long as a busy machine makes it."""
        return self.rng.randint(0, self.latency_max_ms) if self.rng.random() < 0.2 else self.rng.randint(0, 10)

    def _arrived(self, method: str, request: Any, hear: Callable[[Any], None]) -> None:
        shard = self.coordinator.shard
        self.coordinator.take(getattr(shard, method)(self.coordinator.now_ms, hear, request))

    def _reply(self, hear: Callable[[Any], None], response: Any) -> None:
        self.later(self.latency(), lambda: hear(response))

    def _step(self) -> None:
        """Let the next thing happen: something arrives, or a timer of the coordinator is due."""
        coordinator = self.coordinator
        timer_ms = coordinator.shard.next_deadline()
        if self._events and (timer_ms is None or self._events[0][0] < timer_ms):
            coordinator.now_ms, _, action = heapq.heappop(self._events)
            action()
        else:
            assert timer_ms is not None
            coordinator.advance(timer_ms - coordinator.now_ms)

    def settled_after_ms(self) -> int | None:
        """Return when all members were in one generation for a while; None if they never were."""
        coordinator, since_ms = self.coordinator, None
        while coordinator.now_ms - START_MS < SETTLED_WITHIN_MS:
            self._step()
            generations = {member.stable_generation for member in self.members}
            if len(generations) > 1 or None in generations:
                since_ms = None
            elif since_ms is None:
                since_ms = coordinator.now_ms
            elif coordinator.now_ms - since_ms > SETTLED_FOR_MS:
                return since_ms - START_MS
        return None


class Member:
    """A consumer that polls all the time: it joins again at once when it hears that it must."""

    def __init__(self, world: World, number: int) -> None:
        self._world, self._name = world, f"m{number}"
        self._member_id, self._life = "", 0
        self.stable_generation: int | None = None

    def join(self) -> None:
        self.stable_generation = None
        self._life += 1
        protocols = (("range", subscription(["t"])),)
        request = m.JoinRequest(
            "g", SESSION_MS, REBALANCE_TIMEOUT_MS, "consumer", protocols, self._member_id, client_id=self._name
        )
        self._world.ask("join", request, self._joined)

    def _joined(self, response: m.JoinResponse) -> None:
        if response.error_code is ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = response.member_id
            self.join()
        elif self._is_fine(response.error_code):
            assignments = tuple((each.member_id, assignment("t-0")) for each in response.members)
            request = m.SyncRequest("g", self._member_id, response.generation_id, assignments=assignments)
            self._world.ask("sync", request, lambda synced: self._synced(synced, response.generation_id))

    def _synced(self, response: m.SyncResponse, generation: int) -> None:
        if self._is_fine(response.error_code):
            self.stable_generation = generation
            self._heartbeat_later(generation, self._life)

    def _heartbeat_later(self, generation: int, life: int) -> None:
        def beat() -> None:
            if life == self._life:
                request = m.HeartbeatRequest("g", self._member_id, generation)
                self._world.ask("heartbeat", request, lambda response: self._beaten(response, generation, life))

        self._world.later(HEARTBEAT_MS, beat)

    def _beaten(self, response: m.HeartbeatResponse, generation: int, life: int) -> None:
        if life == self._life and self._is_fine(response.error_code):
            self._heartbeat_later(generation, life)

    def _is_fine(self, code: ErrorCode) -> bool:
        if code is ErrorCode.NONE:
            return True
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        self.join()
        return False


@pytest.mark.parametrize("initial_delay_ms", [0, 3_000])
@pytest.mark.parametrize("latency_max_ms", [10, 400])
@pytest.mark.parametrize("members", [2, 5])
def test_a_group_with_a_rebalance_timeout_below_its_heartbeats_settles(
    members: int, latency_max_ms: int, initial_delay_ms: int
) -> None:
    took = {seed: World(seed, members, initial_delay_ms, latency_max_ms).settled_after_ms() for seed in SEEDS}
    assert None not in took.values(), f"seeds that did not settle: {[seed for seed in took if took[seed] is None]}"
    assert max(filter(None, took.values())) < SETTLED_WITHIN_MS / 3


def test_without_time_to_hear_of_a_rebalance_such_groups_starve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebalancing, "REBALANCE_PHASE_MIN_MS", 0)
    took = [World(seed, 5, 0, 10).settled_after_ms() for seed in SEEDS]
    assert took.count(None) > len(SEEDS) / 2
