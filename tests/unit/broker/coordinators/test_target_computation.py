"""The targets of large consumer groups, computed by tasks of a broker."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowstone.coordinator.groups.config import GroupConfig
from flowstone.coordinator.groups.consumer import target
from flowstone.coordinator.groups.consumer.assignors import Assignment
from flowstone.wire import messages as m
from tests.support.running_app import RunningApp
from tests.support.wire_client import Client

PARTITIONS = GroupConfig().consumer_assigned_at_once_max + 500
DEADLINE_S = 30.0


@pytest.fixture
def app(tmp_path: Path) -> Iterator[RunningApp]:
    with RunningApp(str(tmp_path), max_partitions=str(2 * PARTITIONS)) as running:
        yield running


class Member:
    def __init__(self, client: Client, member_id: str) -> None:
        self.client, self.member_id, self.epoch, self.count = client, member_id, 0, 0

    def beat(self, **fields: Any) -> None:
        answer = self.client.ask(
            1,
            m.ConsumerGroupHeartbeatRequest(group_id="g", member_id=self.member_id, member_epoch=self.epoch, **fields),
        )
        assert answer.error_code == 0, answer
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.count = sum(len(topic.partitions) for topic in answer.assignment.topic_partitions)

    def join(self) -> None:
        self.beat(subscribed_topic_names=["large"], rebalance_timeout_ms=60_000, topic_partitions=[])

    def beat_until_it_has(self, count: int) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while self.count != count:
            assert time.monotonic() < deadline_s, f"{self.count} partitions"
            self.beat()


def test_a_large_assignment_reaches_the_member(app: RunningApp) -> None:
    begun: list[target.ComputeTargets] = []
    begin = app.app.services.groups._targets.begin
    app.app.services.groups._targets.begin = lambda task, shard: (begun.append(task), begin(task, shard))[0]  # type: ignore[method-assign,assignment,func-returns-value]
    with app.client() as client:
        assert client.create_topic("large", PARTITIONS) == 0
        client.ask(4, m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
        member = Member(client, "m")
        member.join()
        member.beat_until_it_has(PARTITIONS)
        assert len(begun) == 1


def test_a_computation_that_fails_is_begun_again(app: RunningApp, monkeypatch: pytest.MonkeyPatch) -> None:
    working = target.ASSIGNORS["uniform"]
    failures: list[str] = []

    def fail_once(members: Any, counts: Any) -> Generator[None, None, Assignment]:
        if not failures:
            failures.append("failed")
            raise RuntimeError("planted")
        return (yield from working(members, counts))

    monkeypatch.setattr(target, "ASSIGNORS", {"uniform": fail_once, "range": fail_once})
    with app.client() as client:
        assert client.create_topic("large", PARTITIONS) == 0
        client.ask(4, m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
        member = Member(client, "m")
        member.join()
        member.beat_until_it_has(PARTITIONS)
    assert failures == ["failed"]
