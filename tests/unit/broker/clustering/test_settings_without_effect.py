"""Settings of topics that Kafka has and that change nothing here: stored, shown, and reported once."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

import flowstone

SETTINGS = {
    "local.retention.ms": "1000",
    "local.retention.bytes": "-2",
    "remote.storage.enable": "true",
    "remote.log.copy.disable": "true",
    "remote.log.delete.on.disable": "true",
    "preallocate": "true",
    "leader.replication.throttled.replicas": "0:1,1:2",
    "follower.replication.throttled.replicas": "*",
}


@pytest.fixture(scope="module")
def admin():
    with flowstone.Broker() as broker:
        yield AdminClient({"bootstrap.servers": broker.bootstrap})


def create(admin: AdminClient, topic: str, settings: dict[str, str]) -> None:
    admin.create_topics([NewTopic(topic, 2, config=settings)])[topic].result(10)


def test_each_of_them_is_stored_and_returned(admin: AdminClient) -> None:
    create(admin, "copied", SETTINGS)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "copied")
    entries = admin.describe_configs([resource])[resource].result(10)
    assert {name: entries[name].value for name in SETTINGS} == SETTINGS
    assert not any(entries[name].is_default for name in SETTINGS)


def test_each_is_reported_once_in_the_log(admin: AdminClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), flowstone.Broker() as broker:
        own = AdminClient({"bootstrap.servers": broker.bootstrap})
        for topic in ("one", "two"):
            create(own, topic, {"preallocate": "true"})
    assert sum("preallocate" in each.message for each in caplog.records) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("leader.replication.throttled.replicas", "0-1"),
        ("local.retention.ms", "-3"),
        ("remote.storage.enable", "perhaps"),
        ("remote.storage.enabled", "true"),
    ],
)
def test_malformed_values_and_unknown_names_are_refused(admin: AdminClient, name: str, value: str) -> None:
    with pytest.raises(KafkaException, match=name):
        create(admin, "refused", {name: value})
