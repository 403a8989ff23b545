from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowstone.cluster.image.records import BrokerConfigChanged
from flowstone.errors import ErrorCode
from flowstone.types import ZERO_UUID
from flowstone.wire.messages import DeleteTopicsRequest, MetadataRequest, MetadataRequestTopic

VERSIONS = range(14)
NOT_ASKED = -(2**31)


def ask(*names: str, **more: Any) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], **more)


@pytest.mark.parametrize("version", VERSIONS)
def test_brokers_cluster_and_topics_are_shown_in_every_version(broker: Any, version: int) -> None:
    broker.create("a", num_partitions=2)
    response = broker.call(version, ask("a"))
    (node,) = response.brokers
    assert (node.node_id, node.host, node.port) == (1, "host-1", 9092)
    (topic,) = response.topics
    assert (topic.error_code, topic.name) == (ErrorCode.NONE, "a")
    assert [each.partition_index for each in topic.partitions] == [0, 1]
    assert all((each.leader_id, each.replica_nodes, each.isr_nodes) == (1, [1], [1]) for each in topic.partitions)
    if version >= 1:
        assert (response.controller_id, node.rack) == (1, "rack-1")
    if version >= 2:
        assert response.cluster_id == broker.image.cluster_id
    if version >= 7:
        assert topic.partitions[0].leader_epoch == 0
    if version >= 10:
        assert topic.topic_id == broker.image.topics["a"].topic_id


@pytest.mark.parametrize("version", VERSIONS)
def test_everything_is_asked_for_with_empty_in_version_0_and_null_since(broker: Any, version: int) -> None:
    broker.create("a", "b")
    topics = [] if version == 0 else None
    assert {topic.name for topic in broker.call(version, MetadataRequest(topics=topics)).topics} == {"a", "b"}


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_an_empty_list_asks_for_no_topic_since_version_1(broker: Any, version: int) -> None:
    broker.create("a")
    assert not broker.call(version, MetadataRequest(topics=[])).topics


@pytest.mark.parametrize("version", VERSIONS)
def test_an_unknown_topic_is_created_and_ready_in_the_answer(make_broker: Any, version: int) -> None:
    broker = make_broker(num_partitions="3")
    (topic,) = broker.call(version, ask("new")).topics
    assert (topic.error_code, len(topic.partitions)) == (ErrorCode.NONE, 3)
    assert "new" in broker.image.topics


def test_a_topic_that_another_request_is_creating_is_asked_for_again(
    broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def both() -> tuple[int, int]:
        may_commit, append = asyncio.Event(), broker.log.append

        async def append_later(records: Any) -> None:
            await may_commit.wait()
            await append(records)

        monkeypatch.setattr(broker.log, "append", append_later)
        first = asyncio.ensure_future(broker.ask(9, ask("new")))
        await asyncio.sleep(0.01)
        second = await broker.ask(9, ask("new"))
        may_commit.set()
        return (await first).topics[0].error_code, second.topics[0].error_code

    assert asyncio.run(both()) == (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE)


def test_a_dynamic_number_of_partitions_counts_for_topics_made_on_demand(broker: Any) -> None:
    asyncio.run(broker.metadata.append([BrokerConfigChanged("", {"num.partitions": "4"})]))
    assert len(broker.call(13, ask("new")).topics[0].partitions) == 4


@pytest.mark.parametrize("version", VERSIONS[4:])
def test_nothing_is_created_if_the_request_says_no(broker: Any, version: int) -> None:
    (topic,) = broker.call(version, ask("new", allow_auto_topic_creation=False)).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not broker.image.topics


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_is_created_if_the_broker_says_no(make_broker: Any, version: int) -> None:
    broker = make_broker(auto_create_topics_enable="false")
    assert broker.call(version, ask("new")).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not broker.image.topics


@pytest.mark.parametrize("may_create", [True, False])
def test_an_illegal_name_is_said_to_be_one(broker: Any, may_create: bool) -> None:
    (topic,) = broker.call(9, ask("a/b", allow_auto_topic_creation=may_create)).topics
    assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_topic_that_cannot_be_created_says_why(make_broker: Any) -> None:
    broker = make_broker(default_replication_factor="3")
    assert broker.call(9, ask("new")).topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_an_internal_topic_is_not_created_by_asking(broker: Any) -> None:
    (topic,) = broker.call(9, ask("__consumer_offsets")).topics
    assert (topic.error_code, topic.is_internal) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True)


def test_a_topic_named_twice_is_answered_once(broker: Any) -> None:
    assert len(broker.call(9, ask("a", "a")).topics) == 1


@pytest.mark.parametrize("version", [12, 13])
def test_topics_are_found_by_id(broker: Any, version: int) -> None:
    broker.create("a")
    topic_id = broker.image.topics["a"].topic_id
    wanted = [MetadataRequestTopic(topic_id=each, name=None) for each in (topic_id, b"?" * 16)]
    found = {topic.topic_id: topic for topic in broker.call(version, MetadataRequest(topics=wanted)).topics}
    assert (found[topic_id].error_code, found[topic_id].name) == (ErrorCode.NONE, "a")
    assert (found[b"?" * 16].error_code, found[b"?" * 16].name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)


@pytest.mark.parametrize("version", [10, 11])
def test_ids_are_refused_where_the_protocol_has_them_but_kafka_does_not(broker: Any, version: int) -> None:
    wanted = [MetadataRequestTopic(topic_id=b"?" * 16, name=None)]
    (topic,) = broker.call(version, MetadataRequest(topics=wanted)).topics
    assert topic.error_code == ErrorCode.INVALID_REQUEST


def test_addresses_are_those_of_the_listener_that_was_asked(broker: Any) -> None:
    (node,) = broker.call(9, ask(), listener_name="INSIDE").brokers
    assert (node.host, node.port) == ("inside", 9001)


@pytest.mark.parametrize(("version", "error"), [(5, ErrorCode.LEADER_NOT_AVAILABLE), (6, ErrorCode.LISTENER_NOT_FOUND)])
def test_a_leader_without_that_listener_is_not_shown(broker: Any, version: int, error: ErrorCode) -> None:
    broker.create("a")
    response = broker.call(version, ask("a"), listener_name="OTHER")
    assert response.brokers == []
    (partition,) = response.topics[0].partitions
    assert (partition.error_code, partition.leader_id) == (error, -1)


@pytest.mark.parametrize("version", range(8, 14))
def test_operations_are_told_only_to_those_who_ask(broker: Any, version: int) -> None:
    broker.create("a")
    asked = ask("a", include_topic_authorized_operations=True, include_cluster_authorized_operations=version <= 10)
    response = broker.call(version, asked)
    assert response.topics[0].topic_authorized_operations == 0b110111111000
    assert response.cluster_authorized_operations == (0b1111110100000 if version <= 10 else NOT_ASKED)
    silent = broker.call(version, ask("a"))
    assert silent.topics[0].topic_authorized_operations == silent.cluster_authorized_operations == NOT_ASKED


def test_a_topic_made_again_is_shown_with_its_new_id_only(broker: Any) -> None:
    broker.create("a")
    old = broker.call(12, ask("a")).topics[0].topic_id
    broker.call(5, DeleteTopicsRequest(topic_names=["a"]))
    broker.create("a")
    new = broker.call(12, ask("a")).topics[0].topic_id
    assert old not in (new, ZERO_UUID)
    wanted = MetadataRequest(topics=[MetadataRequestTopic(topic_id=old, name=None)])
    assert broker.call(12, wanted).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
