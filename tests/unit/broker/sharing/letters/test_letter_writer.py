"""Dead letters on three brokers: the leader dies after it has sent letters, and its successor does not repeat them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import flowstone
from flowstone.broker.sharing.letters.dead_letters import DeadLetterQueues
from flowstone.errors import ErrorCode
from flowstone.log.partition.producers.producer_state import ProducerStates
from flowstone.wire import messages as m
from tests.support.sharing.share_client import ACCEPT, REJECT, Sharer
from tests.unit.broker.sharing.test_failover import DEADLINE_S, client_of, started, take

GROUP_RESOURCE = 32
FIRST_LEADER = 1
# The replicas of the queue: its leader is the source's next leader, broker 2, or another broker.
LOCAL, REMOTE = (2, 3, 1), (3, 2, 1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[flowstone.Cluster]:
    with flowstone.Cluster(brokers=3, settings={"share.coordinator.state.topic.num.partitions": "3"}) as cluster:
        yield cluster


@pytest.fixture
def revived(cluster: flowstone.Cluster) -> Iterator[flowstone.Cluster]:
    """The cluster, whose first broker is started again afterwards."""
    yield cluster
    if FIRST_LEADER not in {node_id for node_id in cluster.brokers if cluster._host(node_id).is_running}:
        cluster.restart(FIRST_LEADER)


class FirstSend:
    """Halts the first batch of letters: before it is sent, or once it is in the queue and before that is known."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_sent: bool) -> None:
        self.reached = threading.Event()
        self.batch = b""
        original = DeadLetterQueues._try

        async def halt(queues: DeadLetterQueues, topic: Any, index: int, batch: bytes) -> ErrorCode:
            if self.batch:
                return await original(queues, topic, index, batch)
            self.batch = batch
            while is_sent and await original(queues, topic, index, batch) is not ErrorCode.NONE:
                await asyncio.sleep(0.1)
            self.reached.set()
            await asyncio.Event().wait()
            raise AssertionError

        monkeypatch.setattr(DeadLetterQueues, "_try", halt)


def create(cluster: flowstone.Cluster, name: str, replicas: tuple[int, ...], **configs: str) -> None:
    assignment = m.CreateTopicsRequestAssignment(partition_index=0, broker_ids=list(replicas))
    entries = [m.CreateTopicsRequestConfig(name=key.replace("_", "."), value=each) for key, each in configs.items()]
    topic = m.CreateTopicsRequestTopic(
        name=name, num_partitions=-1, replication_factor=-1, assignments=[assignment], configs=entries
    )
    with client_of(cluster, FIRST_LEADER) as client:
        answer = client.ask(5, m.CreateTopicsRequest(topics=[topic], timeout_ms=20_000))
        assert answer.topics[0].error_code == 0, answer
    cluster.wait_for_leader(name)


def killed_leader(cluster: flowstone.Cluster, name: str, replicas: tuple[int, ...], halt: FirstSend) -> bytes:
    """Have the leader reject records 2 and 5, and kill it where it halts; return the topic's id."""
    create(cluster, name, (1, 2, 3))
    create(cluster, f"dlq.{name}", replicas, errors_deadletterqueue_group_enable="true")
    with client_of(cluster, FIRST_LEADER) as client:
        config = m.IncrementalAlterConfigsRequestConfig(
            name="errors.deadletterqueue.topic.name", config_operation=0, value=f"dlq.{name}"
        )
        resource = m.IncrementalAlterConfigsRequestResource(
            resource_type=GROUP_RESOURCE, resource_name="g", configs=[config]
        )
        client.ask(1, m.IncrementalAlterConfigsRequest(resources=[resource], validate_only=False))
    topic_id = started(cluster, name)
    with client_of(cluster, FIRST_LEADER) as client:
        member = Sharer(client, topic_id)
        assert len(take(member)) == 10
        member.acknowledge((0, 1, ACCEPT), (2, 2, REJECT), (3, 4, ACCEPT), (5, 5, REJECT), (6, 6, ACCEPT))
        assert halt.reached.wait(DEADLINE_S)
    cluster.wait_in_sync(f"dlq.{name}")
    cluster.kill(FIRST_LEADER)
    cluster.wait_for_leader(name, other_than=FIRST_LEADER)
    return topic_id


def drain(cluster: flowstone.Cluster, name: str, topic_id: bytes) -> list[int]:
    """Accept what the next leader delivers; return the offsets."""
    with client_of(cluster, cluster.leader(name)) as client:
        member = Sharer(client, topic_id, "other")
        got = take(member)
        member.accept((got[0].offset, got[-1].offset))
        return [each.offset for each in got]


def letters(cluster: flowstone.Cluster, name: str, count: int = 2) -> list[int]:
    """The offsets of which the queue has letters, once it has so many and has had time for more."""
    until = time.monotonic() + DEADLINE_S
    while len(found := cluster.records(f"dlq.{name}")) < count and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(0.5)
    found = cluster.records(f"dlq.{name}")
    return [int(dict(record.headers)["__dlq.errors.offset"] or b"") for record in found]


@pytest.mark.parametrize("replicas", [LOCAL, REMOTE], ids=["local", "remote"])
def test_letters_that_were_written_are_not_repeated_by_the_next_leader(
    revived: flowstone.Cluster, monkeypatch: pytest.MonkeyPatch, replicas: tuple[int, ...]
) -> None:
    name = f"sent{replicas[0]}"
    topic_id = killed_leader(revived, name, replicas, FirstSend(monkeypatch, is_sent=True))
    assert drain(revived, name, topic_id) == [7, 8, 9]
    assert letters(revived, name) == [2, 5]


def test_letters_that_were_stored_and_not_sent_are_written_by_the_next_leader_and_a_late_request_changes_nothing(
    revived: flowstone.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    halt = FirstSend(monkeypatch, is_sent=False)
    topic_id = killed_leader(revived, "late", REMOTE, halt)
    assert drain(revived, "late", topic_id) == [7, 8, 9]
    assert letters(revived, "late") == [2, 5]
    with client_of(revived, revived.leader("dlq.late")) as client:
        assert client.produce("dlq.late", halt.batch).error_code == 0
    assert letters(revived, "late") == [2, 5]


@pytest.mark.parametrize("replicas", [LOCAL, REMOTE], ids=["local", "remote"])
def test_a_queue_that_has_forgotten_the_producer_is_searched(
    revived: flowstone.Cluster, monkeypatch: pytest.MonkeyPatch, replicas: tuple[int, ...]
) -> None:
    halt = FirstSend(monkeypatch, is_sent=True)
    send = DeadLetterQueues.send

    async def send_later(queues: DeadLetterQueues, *arguments: Any, is_repeated: bool) -> Any:
        queues._sure_for_ms = 0
        return await send(queues, *arguments, is_repeated=is_repeated)

    monkeypatch.setattr(DeadLetterQueues, "send", send_later)
    monkeypatch.setattr(ProducerStates, "check", lambda *arguments: None)
    name = f"forgotten{replicas[0]}"
    topic_id = killed_leader(revived, name, replicas, halt)
    assert drain(revived, name, topic_id) == [7, 8, 9]
    assert letters(revived, name) == [2, 5]
