"""`flowstone share`, at a broker whose records a queue works on."""

from __future__ import annotations

import json
from itertools import count

import pytest

import flowstone
from tests.unit.cli.conftest import Call, Prepare

_numbers = count()


@pytest.fixture
def topic(prepare: Prepare) -> str:
    """A topic with four records."""
    name = f"shared-{next(_numbers)}"
    prepare(name, *((None, f"v{index}", 0) for index in range(4)))
    return name


@pytest.fixture
def group(broker: flowstone.Broker, topic: str) -> str:
    """A group that has accepted the first two records, and then left."""
    name = f"group-of-{topic}"
    with flowstone.Queue(topic, group=name, bootstrap=broker.bootstrap, in_flight=1) as queue:
        for _ in range(2):
            task = queue.get(20)
            assert task is not None
            task.accept()
    return name


def test_groups_are_listed_with_their_lag(call: Call, group: str) -> None:
    rows = {line.split()[0]: line.split()[1:] for line in call("share", "list").splitlines()[1:]}
    assert rows[group] == ["Empty", "0", "2"]
    documents = [json.loads(line) for line in call("share", "list", "--json").splitlines()]
    assert {"group": group, "state": "Empty", "members": 0, "lag": 2} in documents


def test_a_group_is_described_by_partition_and_member(
    call: Call, broker: flowstone.Broker, group: str, topic: str
) -> None:
    with flowstone.Queue(topic, group=group, bootstrap=broker.bootstrap) as queue:
        task = queue.get(20)
        assert task is not None
        shown = call("share", "describe", group)
        told = json.loads(call("share", "describe", group, "--json"))
    assert f"share group {group}: Stable, 1 member, lag 2" in shown
    assert "flowstone-queue" in shown
    assert {"topic": topic, "partition": 0, "start_offset": 2, "lag": 2} in told["partitions"]
    assert told["members"][0]["partitions"] == [{"topic": topic, "partition": 0}]


def test_settings_are_set_and_unset(call: Call, refused: Call, group: str) -> None:
    call("share", "alter", group, "--set", "share.delivery.count.limit=3")
    call("share", "alter", group, "--unset", "share.delivery.count.limit")
    assert "share.delivery.count.limit" in refused("share", "alter", group, "--set", "share.delivery.count.limit=300")
    assert "NAME=VALUE" in refused("share", "alter", group, "--set", "nothing")
    assert "nothing to change" in refused("share", "alter", group)


def test_a_reset_delivers_everything_again(call: Call, broker: flowstone.Broker, group: str, topic: str) -> None:
    plan = call("share", "reset", group, "--topic", topic, "--to-earliest", "--dry-run")
    assert plan.splitlines()[1].split() == [topic, "0", "2", "0"]
    assert json.loads(call("share", "describe", group, "--json"))["lag"] == 2
    call("share", "reset", group, "--topic", topic, "--to-earliest", "--yes")
    with flowstone.Queue(topic, group=group, bootstrap=broker.bootstrap, idle_s=0.5) as queue:
        values = []
        for task in queue:
            with task:
                values.append(task.value)
    assert values == [b"v0", b"v1", b"v2", b"v3"]


def test_a_reset_needs_one_target_and_a_topic_that_exists(refused: Call, group: str, topic: str) -> None:
    assert "give one of" in refused("share", "reset", group, "--topic", topic)
    assert "--topic T" in refused("share", "reset", group, "--to-earliest")
    assert "there is no topic" in refused("share", "reset", group, "--topic", "none", "--to-earliest", "--yes")


def test_a_group_is_deleted(call: Call, refused: Call, group: str) -> None:
    assert "--yes" in refused("share", "delete", group)
    assert call("share", "delete", group, "--yes") == f"deleted share group {group}\n"
    assert "see `flowstone share list`" in refused("share", "describe", group)
