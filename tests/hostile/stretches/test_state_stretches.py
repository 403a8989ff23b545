"""Work that grows with what a broker has, and that no request asks for, does not hold the event loop.

Thousands of partitions with records whose retention is checked, tens of thousands of groups whose offsets may expire, a
group of thousands of members whose partitions are assigned. FLOWSTONE_HOSTILE_LONG=1 has several times as many.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from flowstone.coordinator.groups.consumer.group import ConsumerGroup
from flowstone.coordinator.groups.consumer.messages import ConsumerHeartbeatRequest
from flowstone.coordinator.groups.messages import CommitRequest
from flowstone.wire import messages as m
from tests.hostile.stretches.search import IS_LONG, TIMEOUT_S, check, collector_of_a_broker
from tests.support.running_app import RunningApp
from tests.support.wire_client import Client, batch_of

pytestmark = pytest.mark.measures_time
PARTITIONS, GROUPS, MEMBERS = (10_000, 100_000, 10_000) if IS_LONG else (4_000, 20_000, 4_000)
CHECK_INTERVAL_MS = 1_000
BATCHES_PER_REQUEST, CALLS_PER_TURN = 200, 100
TOPICS = 20
GROUP = "large"


@pytest.fixture(scope="module", autouse=True)
def collector() -> Iterator[None]:
    with collector_of_a_broker():
        yield


@pytest.fixture
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    settings = {
        "max_partitions": "60000",
        "log_retention_check_interval_ms": str(CHECK_INTERVAL_MS),
        "log_flush_offset_checkpoint_interval_ms": str(CHECK_INTERVAL_MS),
        "offsets_retention_check_interval_ms": str(CHECK_INTERVAL_MS),
    }
    with RunningApp(str(tmp_path_factory.mktemp("state")), **settings) as running:
        yield running


@pytest.fixture
def client(app: RunningApp) -> Iterator[Client]:
    with Client(app.app.addresses["PLAINTEXT"], TIMEOUT_S) as connected:
        yield connected


def some_checks() -> None:
    time.sleep(3 * CHECK_INTERVAL_MS / 1000)


def test_retention_and_checkpoints_of_many_partitions_do_not_hold_the_loop(app: RunningApp, client: Client) -> None:
    assert client.create_topic("many", PARTITIONS) == 0
    batch = batch_of(b"x")
    for first in range(0, PARTITIONS, BATCHES_PER_REQUEST):
        indexes = range(first, first + BATCHES_PER_REQUEST)
        parts = [m.ProduceRequestPartition(index=index, records=batch) for index in indexes]
        topics = [m.ProduceRequestTopic(name="many", partition_data=parts)]
        answer = client.ask(9, m.ProduceRequest(acks=1, timeout_ms=30_000, topic_data=topics))
        assert answer.responses[0].partition_responses[-1].error_code == 0
    try:
        check(app, "retention and checkpoints", some_checks)
    finally:  # a clean stop would flush each of them
        client.ask(6, m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequestTopic(name="many")], timeout_ms=60_000))


def test_the_expiry_of_many_groups_does_not_hold_the_loop(app: RunningApp, client: Client) -> None:
    find_coordinator(client)
    assert client.create_topic("t") == 0

    def commit(number: int) -> None:
        request = CommitRequest(f"g{number}", [("t", 0, 1, -1, None)], "", -1, None)
        app.app.services.groups.request(
            request.group_id, lambda shard, now_ms, token: shard.commit_offsets(now_ms, token, request)
        )

    call_each(app, commit, GROUPS)
    check(app, "expiry of groups", some_checks)


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_an_assignment_to_many_members_does_not_hold_the_loop(app: RunningApp, client: Client, assignor: str) -> None:
    find_coordinator(client)
    for number in range(TOPICS):
        assert client.create_topic(f"t{number}", MEMBERS // TOPICS) == 0

    def beat(number: int, epoch: int = 0) -> None:
        request = ConsumerHeartbeatRequest(
            GROUP,
            f"member-{number:05}",
            epoch,
            rebalance_timeout_ms=60_000,
            # Half of the members have another subscription.
            subscribed_topics=tuple(f"t{each}" for each in range(TOPICS >> number % 2)),
            owned=frozenset() if epoch == 0 else None,
            assignor=assignor,
        )
        app.app.services.groups.request(
            GROUP, lambda shard, now_ms, token: shard.consumer_heartbeat(now_ms, token, request)
        )

    call_each(app, beat, MEMBERS)
    group = app.call(lambda: large_group(app))
    wait_until(lambda: group.assigning_epoch is None)

    def assign() -> None:
        time.sleep(1)  # group.consumer.assignment.interval.ms
        epoch = group.epoch + 1
        app.call(partial(beat, MEMBERS + epoch))
        wait_until(lambda: group.assignment_epoch == epoch)

    check(app, f"assignment by {assignor}", assign)
    assert len(group.targets) > MEMBERS


def find_coordinator(client: Client) -> None:
    client.ask(4, m.FindCoordinatorRequest(key_type=0, coordinator_keys=["any"]))


def call_each(app: RunningApp, call: Callable[[int], None], count: int) -> None:
    for first in range(0, count, CALLS_PER_TURN):
        app.call(lambda first=first: [call(number) for number in range(first, min(first + CALLS_PER_TURN, count))])  # type: ignore[misc]


def large_group(app: RunningApp) -> ConsumerGroup:
    shard = app.app.services.groups.shard_of(GROUP)
    assert shard is not None
    assert shard.machine is not None
    group = shard.machine._state.groups[GROUP]
    assert isinstance(group, ConsumerGroup)
    return group


def wait_until(is_reached: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not is_reached():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
