"""Consumer groups (KIP-848) of librdkafka's members: what they read, through restarts and migration, and what is shown.

Members send a heartbeat every 200 ms here, so that groups settle soon.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from confluent_kafka import Producer

import flowstone
from flowstone.broker.lag.group_status import GroupStatus
from flowstone.wire import messages as m
from tests.support.polling_member import PollingMember
from tests.support.wire_client import Client

PARTITIONS = 4
CONSUMER = {"group_protocol": "consumer"}
SETTINGS = {
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 200,
    "group.consumer.assignment.interval.ms": 0,
    "group.initial.rebalance.delay.ms": 0,
}
WAIT_S = 30.0
_numbers = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[flowstone.Broker]:
    with flowstone.Broker(http=True, settings=SETTINGS) as broker:
        yield broker


@pytest.fixture
def name(broker: flowstone.Broker) -> str:
    """The name of a new topic, also for a group."""
    name = f"topic-{next(_numbers)}"
    broker.create_topic(name, partitions=PARTITIONS)
    return name


@pytest.fixture
def join(broker: flowstone.Broker) -> Iterator[Callable[..., PollingMember]]:
    members: list[PollingMember] = []

    def join(name: str, client_id: str, **more: Any) -> PollingMember:
        members.append(PollingMember(broker, name, more.pop("topic", name), client_id=client_id, **more))
        return members[-1]

    yield join
    for member in members:
        member.leave()


def produce(broker: flowstone.Broker | flowstone.Cluster, topic: str, number: int = 20) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for partition in range(PARTITIONS):
        for value in range(number):
            producer.produce(topic, str(value), partition=partition)
    assert producer.flush(10) == 0


def wait_until(is_true: Callable[[], bool], told: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < deadline, told()
        time.sleep(0.05)


def settled(broker: flowstone.Broker, name: str, members: int) -> GroupStatus:
    return broker.wait_for_group(name, members=members, timeout=WAIT_S)


def call(broker: flowstone.Broker, *words: str) -> str:
    command = [sys.executable, "-m", "flowstone.cli", "group", *words, "--bootstrap", broker.bootstrap]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S).stdout


def test_members_share_the_partitions_and_lose_no_record_when_one_comes_and_one_goes(
    broker: flowstone.Broker, name: str, join: Callable[..., PollingMember]
) -> None:
    ada = join(name, "ada", **CONSUMER)
    settled(broker, name, 1)
    produce(broker, name)
    bob = join(name, "bob", **CONSUMER)
    group = settled(broker, name, 2)
    assert sorted(len(each.partitions) for each in group.members) == [2, 2]
    assert (group.type, group.protocol, group.unsettled) == ("consumer", "uniform", "")
    produce(broker, name)
    ada.leave()
    settled(broker, name, 1)
    produce(broker, name)
    expected = {(partition, offset) for partition in range(PARTITIONS) for offset in range(60)}
    wait_until(lambda: {*ada.read, *bob.read} == expected, lambda: expected - {*ada.read, *bob.read})


def test_a_pattern_finds_the_topics_that_match(
    broker: flowstone.Broker, name: str, join: Callable[..., PollingMember]
) -> None:
    produce(broker, name, 1)
    member = join(name, "ada", topic=f"^{name}.*", **CONSUMER)
    wait_until(lambda: len(member.read) == PARTITIONS, lambda: member.read)
    group = settled(broker, name, 1)
    assert group.topics == (name,)
    assert group.members[0].regex == f"(^{name}.*)"  # librdkafka joins all patterns


def test_a_live_classic_group_migrates_up_and_down_and_loses_no_record(
    broker: flowstone.Broker, name: str, join: Callable[..., PollingMember]
) -> None:
    classic = join(name, "classic", partition_assignment_strategy="cooperative-sticky")
    settled(broker, name, 1)
    produce(broker, name)
    wait_until(lambda: len(set(classic.read)) == 80, lambda: classic.read)
    modern = join(name, "modern", **CONSUMER)
    group = settled(broker, name, 2)
    assert group.type == "consumer"
    assert sorted(each.protocol for each in group.members) == ["classic", "consumer"]
    produce(broker, name)
    modern.leave()
    assert settled(broker, name, 1).type == "classic"
    produce(broker, name)
    expected = {(partition, offset) for partition in range(PARTITIONS) for offset in range(60)}
    wait_until(lambda: {*classic.read, *modern.read} == expected, lambda: expected - {*classic.read, *modern.read})


def test_a_description_shows_who_waits_for_whom(broker: flowstone.Broker, name: str) -> None:
    with Client(("127.0.0.1", broker.port)) as client:
        for member_id in ("ada", "bob"):
            client.ask(6, m.FindCoordinatorRequest(key_type=0, coordinator_keys=[name]))
            answer = client.ask(
                1,
                m.ConsumerGroupHeartbeatRequest(
                    group_id=name,
                    member_id=member_id,
                    member_epoch=0,
                    rebalance_timeout_ms=60_000,
                    subscribed_topic_names=[name],
                    topic_partitions=[],
                ),
            )
            assert answer.error_code == 0, answer
        printed = call(broker, "describe", name)
        assert printed.startswith(f"group {name}: Reconciling, 2 members, uniform, consumer protocol, epoch 3")
        waits = f"not settled: Member bob waits for {name}-2 and 1 more partitions, which member ada has not given up"
        assert waits in printed
        document = json.loads(call(broker, "describe", name, "--json"))
        (bob,) = [each for each in document["members"] if each["member"] == "bob"]
        assert (bob["state"], bob["epoch"], bob["protocol"]) == ("waiting", 3, "consumer")
        assert bob["waiting"] == [{"topic": name, "partition": 2}, {"topic": name, "partition": 3}]
        assert bob["idle_reason"] == "a rebalance is in progress"
        (listed,) = [json.loads(line) for line in call(broker, "list", "--json").splitlines() if name in line]
        assert (listed["type"], listed["state"]) == ("consumer", "Reconciling")


def test_members_go_on_after_their_broker_was_killed() -> None:
    with flowstone.Broker(mode="process", settings=SETTINGS) as broker:
        broker.create_topic("t", partitions=PARTITIONS)
        members = [PollingMember(broker, "g", "t", client_id=each, **CONSUMER) for each in ("ada", "bob")]
        try:
            produce(broker, "t")
            wait_until(lambda: sum(len(each.read) for each in members) >= 80, lambda: members)
            broker.kill()
            broker.restart()
            produce(broker, "t")
            expected = {(partition, offset) for partition in range(PARTITIONS) for offset in range(40)}
            wait_until(lambda: {*members[0].read, *members[1].read} == expected, lambda: expected)
        finally:
            for member in members:
                member.leave()


def test_members_go_on_when_their_coordinator_fails_over() -> None:
    with flowstone.Cluster(3, settings=SETTINGS | {"offsets.topic.num.partitions": 1}) as cluster:
        cluster.create_topic("t", partitions=PARTITIONS)
        members = [PollingMember(cluster, "g", "t", client_id=each, **CONSUMER) for each in ("ada", "bob")]
        try:
            produce(cluster, "t")
            wait_until(lambda: sum(len(each.read) for each in members) >= 80, lambda: members)
            cluster.kill(cluster.leader("__consumer_offsets"))
            produce(cluster, "t")
            expected = {(partition, offset) for partition in range(PARTITIONS) for offset in range(40)}
            wait_until(lambda: {*members[0].read, *members[1].read} == expected, lambda: expected)
        finally:
            for member in members:
                member.leave()
