"""The random lives of `simulation`, with assignments that are computed by tasks and stored member by member.

Everything else happens between the parts: heartbeats, commits, changes of the group, and a coordinator that moves.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any

from flowstone.coordinator.effects import Effects
from flowstone.coordinator.groups.config import GroupConfig
from flowstone.coordinator.groups.consumer.target import ComputeTargets, Target, run_at_once, targets_computed
from tests.unit.coordinator.groups.consumer.simulation import Client, World

FAILURES, STORES = 0.05, 0.07


@dataclass(eq=False)
class SlicedWorld(World):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.coordinator.config = GroupConfig(consumer_assigned_at_once_max=0)
        self.coordinator.reload()
        self.parts: deque[tuple[ComputeTargets, list[Target] | None, bool]] = deque()
        self.outdated: deque[tuple[ComputeTargets, list[Target] | None, bool]] = deque()
        self.stored_parts = 0
        take = self.coordinator.take

        def take_tasks(effects: Effects[Any]) -> None:
            take(effects)
            for task in effects.tasks:
                assert isinstance(task, ComputeTargets)
                self.begin(task)

        self.coordinator.take = take_tasks  # type: ignore[method-assign]

    def begin(self, task: ComputeTargets) -> None:
        assert not self.parts, "two assignments of one group are computed at the same time"
        if self.random.random() < FAILURES:
            self.parts.append((task, None, True))
            return
        parts = [*([each] for each in run_at_once(task.steps))] or [[]]
        self.parts.extend((task, part, number == len(parts)) for number, part in enumerate(parts, 1))

    def step(self) -> None:
        if self.outdated and self.random.random() < STORES:
            self.store(*self.outdated.popleft())
        elif self.parts and self.random.random() < STORES:
            self.store_part()
        else:
            super().step()

    def store_part(self) -> None:
        self.store(*self.parts.popleft())
        self.stored_parts += 1

    def store(self, task: ComputeTargets, part: list[Target] | None, is_last: bool) -> None:
        store = partial(targets_computed, task=task, part=part, is_last=is_last)
        self.coordinator.take(self.coordinator.shard.task_done(self.coordinator.now_ms, task.group_id, store))

    def reload(self) -> None:
        """Move the coordinator: its former computation ends late, and one part may be lost."""
        super().reload()
        if self.parts:
            self.parts.popleft()
        self.outdated.extend(self.parts)
        self.parts.clear()

    def beat(self, client: Client | None = None, *, is_reliable: bool = False) -> None:
        super().beat(client, is_reliable=is_reliable)
        while is_reliable and self.parts:
            self.store_part()
