"""Quotas of clients as they see them: rates, throttle times, muted connections, refused mutations."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from flowstone.wire import messages as m
from tests.support.acl_clients import User, principal_by_client_id, user
from tests.support.running_app import RunningApp
from tests.support.wire_client import batch_of

RUN_S = 3.0
ROUND_TRIPS = 400
FLOOR_S = 0.005  # a hundredth of round trips is the machine's doing
THROTTLING_QUOTA_EXCEEDED = 89


@pytest.fixture
def app(tmp_path: Path) -> Iterator[RunningApp]:
    settings = {"quota_window_num": "2", "controller_quota_window_num": "2"}
    with RunningApp(str(tmp_path), intercept=principal_by_client_id, **settings) as app, user(app) as admin:
        create(admin, "t")
        yield app


@pytest.fixture
def admin(app: RunningApp) -> Iterator[User]:
    with user(app) as admin:
        yield admin


@pytest.fixture
def bob(app: RunningApp) -> Iterator[User]:
    with user(app, "bob") as bob:
        yield bob


def set_quota(admin: User, **values: float) -> None:
    request = m.AlterClientQuotasRequest(
        entries=[
            m.AlterClientQuotasRequestEntry(
                entity=[m.AlterClientQuotasRequestEntity(entity_type="user", entity_name="bob")],
                ops=[m.AlterClientQuotasRequestOp(key=key, value=value) for key, value in values.items()],
            )
        ]
    )
    assert [each.error_code for each in admin.ask(1, request).entries] == [0]


def create(client: User, *names: str, version: int = 6, partitions: int = 1) -> Any:
    topics = [m.CreateTopicsRequestTopic(name=each, num_partitions=partitions, replication_factor=1) for each in names]
    return client.ask(version, m.CreateTopicsRequest(topics=topics, timeout_ms=10_000))


def produce(client: User, records: bytes, acks: int = 1) -> Any:
    partition = m.ProduceRequestPartition(index=0, records=records)
    topics = [m.ProduceRequestTopic(name="t", partition_data=[partition])]
    return client.ask(9, m.ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=topics))


class Meter:
    """The rate of a client after its first burst, which ends with the first throttled response."""

    def __init__(self) -> None:
        self.throttled, self._total, self._began = 0, 0, time.monotonic()
        self._ends = self._began + 60

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._ends

    def count(self, size: int, throttle_time_ms: int) -> None:
        if throttle_time_ms and not self.throttled:
            self._began, self._total = time.monotonic(), -size
            self._ends = self._began + RUN_S
        self.throttled += bool(throttle_time_ms)
        self._total += size

    @property
    def rate(self) -> float:
        return self._total / (time.monotonic() - self._began)


@pytest.mark.measures_time
def test_a_producer_is_as_fast_as_its_quota(admin: User, bob: User) -> None:
    set_quota(admin, producer_byte_rate=100_000)
    records, meter = batch_of(*[b"x" * 500] * 10), Meter()
    while not meter.is_over:
        response = produce(bob, records, acks=-1)
        assert not any(each.error_code for topic in response.responses for each in topic.partition_responses)
        meter.count(len(records), response.throttle_time_ms)
    assert meter.rate == pytest.approx(100_000, rel=0.05)


@pytest.mark.measures_time
def test_a_consumer_is_as_fast_as_its_quota_and_misses_no_record(admin: User, bob: User) -> None:
    records, offset, meter = batch_of(*[b"x" * 500] * 10), 0, Meter()
    for _ in range(150):
        produce(admin, records)
    set_quota(admin, consumer_byte_rate=100_000)
    while not meter.is_over:
        partition = m.FetchRequestPartition(partition=0, fetch_offset=offset, partition_max_bytes=10_500)
        topics = [m.FetchRequestTopic(topic="t", partitions=[partition])]
        request = m.FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=10_500, session_epoch=-1, topics=topics)
        response = bob.ask(12, request)
        size = sum(len(each.records) for topic in response.responses for each in topic.partitions)
        offset += 10 * (size // len(records))
        meter.count(size, response.throttle_time_ms)
    assert meter.rate == pytest.approx(100_000, rel=0.05)


@pytest.mark.measures_time
def test_a_muted_client_that_ignores_the_throttle_time_is_not_read_and_others_are(admin: User, bob: User) -> None:
    set_quota(admin, producer_byte_rate=1_000)
    response = produce(bob, batch_of(b"x" * 3_000))
    assert 1_000 < response.throttle_time_ms < 30_000
    request = m.ApiVersionsRequest(client_software_name="a", client_software_version="1")
    bob.send(3, request)
    bob.client.socket.settimeout(0.5)
    with pytest.raises(TimeoutError):
        bob.receive(3, request)
    started = time.monotonic()
    produce(admin, batch_of(b"x" * 3_000))
    assert time.monotonic() - started < 0.5


@pytest.mark.measures_time
def test_clients_over_their_quota_leave_others_their_latency(app: RunningApp, admin: User) -> None:
    """Ten connections of bob that never wait: the 99th percentile of the admin's round trips is below twice its own."""
    set_quota(admin, producer_byte_rate=1_000)
    records, small = batch_of(b"x" * 100_000), batch_of(b"x")
    with ExitStack() as opened:
        muted = [opened.enter_context(user(app, "bob")) for _ in range(10)]
        peaceful = round_trips_s(admin, small)
        for each in muted:
            each.client.socket.setblocking(False)
        crowded = []
        for _ in range(ROUND_TRIPS // 20):
            for each in muted:
                with suppress(OSError):  # the buffers are full
                    send_produce(each, records)
            crowded += round_trips_s(admin, small, 20)
    alone, beside = p99(peaceful), p99(crowded)
    assert beside < 2 * max(alone, FLOOR_S), f"{alone * 1000:.2f} and {beside * 1000:.2f} ms"


def send_produce(client: User, records: bytes) -> None:
    partition = m.ProduceRequestPartition(index=0, records=records)
    topics = [m.ProduceRequestTopic(name="t", partition_data=[partition])]
    client.send(9, m.ProduceRequest(acks=1, timeout_ms=10_000, topic_data=topics))


def round_trips_s(client: User, records: bytes, count: int = ROUND_TRIPS) -> list[float]:
    took = []
    for _ in range(count):
        started = time.monotonic()
        produce(client, records)
        took.append(time.monotonic() - started)
    return took


def p99(times_s: list[float]) -> float:
    return sorted(times_s)[int(len(times_s) * 0.99)]


def test_time_on_the_event_loop_is_limited(admin: User, bob: User) -> None:
    set_quota(admin, request_percentage=0.01)
    ends = time.monotonic() + 5
    while not (told := create(bob, "t").throttle_time_ms) and time.monotonic() < ends:
        pass
    assert 0 < told <= 1_001


def test_topics_over_the_quota_are_refused_and_old_clients_wait(app: RunningApp, admin: User, bob: User) -> None:
    set_quota(admin, controller_mutation_rate=1)
    first = create(bob, "one", "two", partitions=3)
    assert [each.error_code for each in first.topics] == [0, THROTTLING_QUOTA_EXCEEDED]
    assert first.throttle_time_ms > 0
    with user(app, "bob") as another:  # the quota is shared by the user's connections
        second = create(another, "two")
        assert [each.error_code for each in second.topics] == [THROTTLING_QUOTA_EXCEEDED]
    with user(app, "bob") as old:
        third = create(old, "three", version=5)
        assert [each.error_code for each in third.topics] == [0]
        assert third.throttle_time_ms > first.throttle_time_ms
    with user(app, "bob") as another:
        grown = m.CreatePartitionsRequest(
            topics=[m.CreatePartitionsRequestTopic(name="t", count=5, assignments=None)], timeout_ms=10_000
        )
        assert [each.error_code for each in another.ask(3, grown).results] == [THROTTLING_QUOTA_EXCEEDED]
    with user(app, "bob") as another:
        deleted = another.ask(5, m.DeleteTopicsRequest(topic_names=["one"], timeout_ms=10_000))
        assert [each.error_code for each in deleted.responses] == [THROTTLING_QUOTA_EXCEEDED]
    assert {"one", "three"} <= set(app.app.services.metadata.image.topics)
    assert [each.error_code for each in create(admin, "four", partitions=10).topics] == [0]


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_described_and_validated_in_every_version(admin: User, version: int) -> None:
    set_quota(admin, producer_byte_rate=5, request_percentage=1.5)
    component = m.DescribeClientQuotasRequestComponent(entity_type="user", match_type=0, match="bob")
    described = admin.ask(version, m.DescribeClientQuotasRequest(components=[component], strict=True))
    (entry,) = described.entries
    assert [(each.entity_type, each.entity_name) for each in entry.entity] == [("user", "bob")]
    assert {each.key: each.value for each in entry.values} == {"producer_byte_rate": 5, "request_percentage": 1.5}
    wrong = m.DescribeClientQuotasRequestComponent(entity_type="user", match_type=9)
    refused = admin.ask(version, m.DescribeClientQuotasRequest(components=[wrong]))
    assert refused.error_code == 42
    entity = m.AlterClientQuotasRequestEntity(entity_type="user", entity_name="bob")
    ops = [m.AlterClientQuotasRequestOp(key="producer_byte_rate", remove=True)]
    entries = [m.AlterClientQuotasRequestEntry(entity=[entity], ops=ops)]
    assert (
        admin.ask(version, m.AlterClientQuotasRequest(entries=entries, validate_only=True)).entries[0].error_code == 0
    )
    assert len(admin.ask(version, m.DescribeClientQuotasRequest()).entries[0].values) == 2
    twice = admin.ask(version, m.AlterClientQuotasRequest(entries=entries * 2))
    assert [each.error_code for each in twice.entries] == [42, 42]
