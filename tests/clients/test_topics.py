"""Topics and their settings, as administrators make, change and remove them."""

from __future__ import annotations

import pytest

from flowstone.embedded import Broker
from flowstone.errors import ErrorCode
from tests.clients.confluent_driver import ConfluentDriver
from tests.clients.conftest import AUTO_CREATED_PARTITIONS
from tests.clients.driver import Driver, Refused, Sent


def test_a_created_topic_is_listed_with_its_partitions(client: Driver, topic_name: str) -> None:
    client.create_topic(topic_name, 5)

    assert topic_name in client.topics()
    assert client.partition_count(topic_name) == 5


def test_a_topic_cannot_be_created_twice(client: Driver, topic: str) -> None:
    with pytest.raises(Refused) as refused:
        client.create_topic(topic, 1)

    assert refused.value.code == ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize("name", ["..", "a/b", "x" * 250])
def test_a_name_that_kafka_does_not_allow_is_refused(client: Driver, name: str) -> None:
    with pytest.raises(Refused) as refused:
        client.create_topic(name, 1)

    assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_names_that_differ_in_dot_and_underscore_clash(client: Driver, topic_name: str) -> None:
    client.create_topic(f"{topic_name}.a", 1)

    with pytest.raises(Refused) as refused:
        client.create_topic(f"{topic_name}_a", 1)

    assert refused.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_setting_out_of_its_bounds_is_refused_at_creation(client: Driver, topic_name: str) -> None:
    with pytest.raises(Refused) as refused:
        client.create_topic(topic_name, 1, {"retention.ms": "-5"})

    assert refused.value.code == ErrorCode.INVALID_CONFIG
    assert topic_name not in client.topics()


def test_a_deleted_topic_is_no_longer_listed(client: Driver, topic: str) -> None:
    client.delete_topic(topic)

    assert topic not in client.topics()


def test_an_unknown_topic_cannot_be_deleted(client: Driver, topic_name: str) -> None:
    with pytest.raises(Refused) as refused:
        client.delete_topic(topic_name)

    assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_made_again_has_none_of_the_old_records(client: Driver, topic: str) -> None:
    client.produce(topic, [Sent(b"old") for _ in range(10)])
    client.delete_topic(topic)

    client.create_topic(topic, 1)

    assert client.watermarks(topic, 0) == (0, 0)
    assert client.produce(topic, [Sent(b"new")]) == [(0, 0)]
    assert [record.value for record in client.consume_from_beginning(topic, 0, 1)] == [b"new"]


def test_a_topic_made_again_has_another_id(broker: Broker, topic_name: str) -> None:
    client = ConfluentDriver(broker.bootstrap)
    client.create_topic(topic_name, 1)
    first = client.topic_id(topic_name)
    client.delete_topic(topic_name)

    client.create_topic(topic_name, 1)

    assert client.topic_id(topic_name) != first


def test_producing_to_an_unknown_topic_makes_it(client: Driver, topic_name: str) -> None:
    client.produce(topic_name, [Sent(b"value", partition=2)])

    assert client.partition_count(topic_name) == AUTO_CREATED_PARTITIONS
    assert client.watermarks(topic_name, 2) == (0, 1)


def test_describing_an_unknown_topic_does_not_make_it(drivers: dict[str, Driver], topic_name: str) -> None:
    # aiokafka's old Metadata requests always allow creation.
    for client in (drivers["confluent-kafka"], drivers["kafka-python"]):
        with pytest.raises(Refused) as refused:
            client.partition_count(topic_name)
        assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert topic_name not in client.topics()


def test_partitions_are_added_and_can_be_used_at_once(client: Driver, topic: str) -> None:
    client.create_partitions(topic, 4)

    assert client.partition_count(topic) == 4
    assert client.produce(topic, [Sent(b"value", partition=3)]) == [(3, 0)]


def test_partitions_cannot_be_taken_away(client: Driver, topic_name: str) -> None:
    client.create_topic(topic_name, 3)

    with pytest.raises(Refused) as refused:
        client.create_partitions(topic_name, 2)

    assert refused.value.code == ErrorCode.INVALID_PARTITIONS


def test_settings_given_at_creation_are_shown_beside_the_defaults(client: Driver, topic_name: str) -> None:
    client.create_topic(topic_name, 1, {"retention.ms": "86400000"})

    configs = client.topic_configs(topic_name)

    assert configs["retention.ms"] == "86400000"
    assert configs["cleanup.policy"] == "delete"


def test_a_changed_setting_is_shown(client: Driver, topic: str) -> None:
    client.alter_topic_config(topic, "retention.ms", "3600000")

    assert client.topic_configs(topic)["retention.ms"] == "3600000"


def test_a_changed_limit_holds_at_once(client: Driver, topic: str) -> None:
    client.alter_topic_config(topic, "max.message.bytes", "500")

    with pytest.raises(Refused) as refused:
        client.produce(topic, [Sent(bytes(1000))])

    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize(("name", "value"), [("retention.ms", "soon"), ("cleanup.policy", "burn"), ("no.such", "1")])
def test_a_setting_that_makes_no_sense_is_refused(client: Driver, topic: str, name: str, value: str) -> None:
    with pytest.raises(Refused) as refused:
        client.alter_topic_config(topic, name, value)

    assert refused.value.code == ErrorCode.INVALID_CONFIG
