"""A coordinator of a few lines on `CoordinatorHost`, over the transaction coordinator's topic of a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flowstone.broker.coordinators.coordinator_host import CoordinatorHost, HostServices
from flowstone.broker.coordinators.internal_topics import InternalTopic
from flowstone.cluster.decisions.topic_names import TRANSACTION_STATE
from flowstone.cluster.image.cluster_image import NO_LEADER
from flowstone.cluster.image.records import PartitionChanged
from flowstone.coordinator.effects import Effects, TransactionalProducer
from flowstone.coordinator.runtime import HostedShard, Token
from flowstone.errors import ApiError, ErrorCode
from flowstone.types import TopicPartition
from flowstone.wire import messages as m
from flowstone.wire.end_markers import EndMarker
from flowstone.wire.record_batch import encode_record
from tests.support.running_app import RunningApp

TOPIC = InternalTopic(TRANSACTION_STATE, 3, 1, (("cleanup.policy", "compact"),))
LOAD_WAIT_S = 5.0
# Of Java's hash codes: "a" is 97, which has the remainder 1.
A_PLACE = TopicPartition(TRANSACTION_STATE, 1)


class NamesCodec:
    def encode_all(self, records: Sequence[str]) -> list[bytes]:
        return [encode_record(delta, 0, name.encode(), b"") for delta, name in enumerate(records)]

    def decode(self, key: bytes, value: bytes | None) -> str:
        return key.decode()


class Names:
    """A state machine that remembers names, and asks for each to be greeted."""

    def __init__(self, leader_epoch: int) -> None:
        self.leader_epoch = leader_epoch
        self.names: list[str] = []
        self.greeted: list[str] = []

    def replay(self, records: Sequence[str], producer: TransactionalProducer | None = None) -> None:
        assert producer is None
        self.names += records

    def replay_marker(self, producer: TransactionalProducer, marker: EndMarker) -> None:
        raise AssertionError("there are no transactions in this topic")

    def loaded(self, now_ms: int) -> Effects[str]:
        return Effects()

    def tick(self, now_ms: int) -> Effects[str]:
        return Effects()

    def next_deadline(self) -> int | None:
        return None

    def close(self) -> None:
        self.names.clear()

    def add(self, token: Any, name: str) -> Effects[str]:
        return Effects([name], [(token, None)], tasks=[name])

    def describe(self, token: Any) -> Effects[str]:
        return Effects([], [(token, (self.leader_epoch, tuple(self.names), tuple(self.greeted)))])


class NamesCoordinator:
    def __init__(self, app: RunningApp) -> None:
        self._app = app
        services = app.app.services
        needed = HostServices(services.config, services.clock, services.metadata, services.partitions, services.workers)
        self.host = app.call(lambda: CoordinatorHost(TOPIC, NamesCodec(), Names, needed, self._greet))

    def _greet(self, shard: HostedShard[Names], name: str) -> None:
        def greeted(machine: Names, _now_ms: int) -> Effects[str]:
            machine.greeted.append(name)
            return Effects()

        shard.execute(greeted)

    def create_topic(self) -> None:
        self._app.run(self.host.create_topic())
        self._app.run(self.host.wait_loaded(LOAD_WAIT_S))

    def add(self, name: str) -> None:
        self.ask(lambda: self.host.request(name, lambda machine, _, token: machine.add(token, name)))

    def describe(self, name: str) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
        """The leader epoch, the names and the names greeted of the shard that has this one."""
        found: tuple[int, tuple[str, ...], tuple[str, ...]] = self.ask(
            lambda: self.host.request(name, lambda machine, _, token: machine.describe(token))
        )
        return found

    def ask(self, request: Callable[[], Token]) -> Any:
        async def ask() -> Any:
            return await request()

        return self._app.run(ask())

    def move(self, **state: int) -> None:
        """Have the cluster decide something of the partition that has "a"."""
        metadata = self._app.app.services.metadata
        image = metadata.image.partition(A_PLACE)
        assert image is not None
        changed = replace(image, partition_epoch=image.partition_epoch + 1, **state)
        topic_id = metadata.image.topics[A_PLACE.topic].topic_id

        async def move() -> None:
            await metadata.append([PartitionChanged(topic_id, A_PLACE.partition, changed)])
            await self.host.wait_loaded(LOAD_WAIT_S)

        self._app.run(move())


@pytest.fixture
def app(tmp_path: Path) -> Iterator[RunningApp]:
    with RunningApp(str(tmp_path)) as app:
        yield app


@pytest.fixture
def names(app: RunningApp) -> NamesCoordinator:
    return NamesCoordinator(app)


def refusal(names: NamesCoordinator, name: str) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        names.describe(name)
    return refused.value.code


def test_a_coordinator_whose_topic_is_missing_creates_it_as_it_is_asked_to(
    app: RunningApp, names: NamesCoordinator
) -> None:
    assert (names.host.partition_of("a"), refusal(names, "a")) == (None, ErrorCode.NOT_COORDINATOR)
    names.create_topic()
    assert names.host.partition_of("a") == A_PLACE
    topic = app.app.services.metadata.image.topics[TRANSACTION_STATE]
    assert (len(topic.partitions), topic.configs["cleanup.policy"]) == (3, "compact")


def test_creating_a_topic_that_is_there_is_no_error(names: NamesCoordinator) -> None:
    names.create_topic()
    names.create_topic()


def test_each_key_has_its_own_shard_and_each_shard_its_tasks(names: NamesCoordinator) -> None:
    names.create_topic()
    for name in ("a", "b", "d"):  # "d" is 100: the same remainder as "a"
        names.add(name)
    assert names.describe("a")[1:] == (("a", "d"), ("a", "d"))
    assert names.describe("b")[1:] == (("b",), ("b",))


def test_a_request_to_all_reaches_every_shard(names: NamesCoordinator) -> None:
    names.create_topic()
    for name in ("a", "b"):
        names.add(name)

    async def describe_all() -> list[Any]:
        tokens = names.host.request_all(lambda machine, _, token: machine.describe(token))
        return await asyncio.gather(*(_outcome(token) for token in tokens))

    assert [found[1] for found in names._app.run(describe_all())] == [(), ("a",), ("b",)]


async def _outcome(token: Token) -> Any:
    return await token


def test_a_shard_is_loaded_again_when_its_partition_is_led_in_another_epoch(names: NamesCoordinator) -> None:
    names.create_topic()
    names.add("a")
    epoch = names.describe("a")[0]
    names.move(leader_epoch=epoch + 1)
    assert names.describe("a") == (epoch + 1, ("a",), ())


def test_a_shard_is_closed_when_its_partition_is_led_elsewhere_and_loaded_when_it_comes_back(
    app: RunningApp, names: NamesCoordinator
) -> None:
    names.create_topic()
    names.add("a")
    leader, epoch = app.app.config.node_id, names.describe("a")[0]
    names.move(leader=NO_LEADER, leader_epoch=epoch + 1)
    assert refusal(names, "a") is ErrorCode.NOT_COORDINATOR
    assert names.describe("b")[1] == ()
    names.move(leader=leader, leader_epoch=epoch + 2)
    assert names.describe("a")[1] == ("a",)


def test_without_its_topic_a_coordinator_knows_nothing_and_begins_anew(
    app: RunningApp, names: NamesCoordinator
) -> None:
    names.create_topic()
    names.add("a")
    with app.client() as client:
        client.ask(1, m.DeleteTopicsRequest(topic_names=[TRANSACTION_STATE], timeout_ms=1000))
    assert refusal(names, "a") is ErrorCode.NOT_COORDINATOR
    names.create_topic()
    assert names.describe("a")[1] == ()


def test_a_coordinator_of_a_broker_that_starts_loads_what_it_leads(tmp_path: Path) -> None:
    with RunningApp(str(tmp_path)) as app:
        names = NamesCoordinator(app)
        names.create_topic()
        names.add("a")
    with RunningApp(str(tmp_path)) as app:
        names = NamesCoordinator(app)
        app.run(names.host.wait_loaded(LOAD_WAIT_S))
        assert names.describe("a")[1:] == (("a",), ())


def test_a_coordinator_that_was_closed_answers_nobody_and_loads_nothing(
    app: RunningApp, names: NamesCoordinator
) -> None:
    names.create_topic()
    epoch = names.describe("a")[0]
    app.call(names.host.close)
    assert refusal(names, "a") is ErrorCode.NOT_COORDINATOR
    names.move(leader_epoch=epoch + 1)
    assert refusal(names, "a") is ErrorCode.NOT_COORDINATOR


def test_what_many_different_and_long_keys_ask_is_not_remembered_for_ever(
    names: NamesCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowstone.broker.coordinators.coordinator_host.LOCATED_KEYS_MAX", 10)
    names.create_topic()
    for number in range(25):
        names.describe(str(number))
        names.describe(f"{number}" * 300)
    assert len(names.host._shards_by_key) <= 10
    assert all(len(key) < 300 for key in names.host._shards_by_key)


def test_only_internal_topics_are_a_coordinators() -> None:
    with pytest.raises(AssertionError, match="clients"):
        InternalTopic("orders", 1, 1, ())
