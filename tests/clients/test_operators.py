"""Kafka's own tools and consumer: operators' work, groups of the consumer protocol, the newer administrative APIs.

Each tool starts a Java process. FLOWSTONE_GROUP_TOOLS=all runs those that take longest too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

import flowstone
from flowstone.cluster.image.features import METADATA_LEVEL_MAX, METADATA_VERSION
from tests.clients.conftest import Java

TOOLS = "org.apache.kafka.tools"
RECORDS = 5
IS_LONG = os.environ.get("FLOWSTONE_GROUP_TOOLS") == "all"


def test_kafkas_cluster_tool_unregisters_a_broker_that_is_gone(java: Java) -> None:
    with flowstone.Cluster(2) as cluster:
        cluster.brokers[2].stop()
        told = java(
            "org.apache.kafka.tools.ClusterTool", "unregister", "--bootstrap-server", cluster.brokers[1].bootstrap,
            "--id", "2",
        )  # fmt: skip
        assert "Broker 2 is no longer registered." in told
        assert list(cluster.image.brokers) == [1]


def test_kafkas_features_tool_describes_and_changes_levels(java: Java) -> None:
    def features(*arguments: str) -> str:
        return java("org.apache.kafka.tools.FeatureCommand", "--bootstrap-server", broker.bootstrap, *arguments)

    with flowstone.Broker() as broker:
        name = "Feature: flowstone.metadata.version"
        (line,) = (line for line in features("describe").splitlines() if line.startswith(name))
        level = METADATA_LEVEL_MAX
        columns = (
            "SupportedMinVersion: 1",
            f"SupportedMaxVersion: {level}",
            f"FinalizedVersionLevel: {level}",
            "Epoch: ",
        )
        assert all(each in line for each in columns)
        told = features("upgrade", "--feature", f"{METADATA_VERSION}={level}")
        assert f"{METADATA_VERSION} was upgraded to {level}." in told


@pytest.fixture(scope="module")
def broker() -> Iterator[flowstone.Broker]:
    with flowstone.Broker(settings={"group.consumer.assignment.interval.ms": 0}) as broker:
        broker.create_topic("t", partitions=1)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for number in range(RECORDS):
            producer.produce("t", f"value-{number}")
        assert producer.flush(10) == 0
        yield broker


def test_javas_consumer_reads_in_the_consumer_protocol_and_kafkas_tools_read_what_it_left(
    java: Java, broker: flowstone.Broker
) -> None:
    server = ("--bootstrap-server", broker.bootstrap)
    read = java(
        f"{TOOLS}.consumer.ConsoleConsumer", *server, "--topic", "t", "--from-beginning", "--group", "g",
        "--command-property", "group.protocol=consumer", "--max-messages", str(RECORDS), "--timeout-ms", "20000",
    )  # fmt: skip
    assert [line for line in read.splitlines() if line.startswith("value-")] == [f"value-{n}" for n in range(RECORDS)]
    (log,) = [each for each in Path(broker.data_directory).glob("__consumer_offsets-*/*.log") if each.stat().st_size]
    dumped = java(f"{TOOLS}.DumpLogSegments", "--offsets-decoder", "--files", str(log))
    for kind in (3, 5, 6, 7, 8):
        assert f'key: {{"type":"{kind}","data":{{"groupId":"g"' in dumped


@pytest.mark.skipif(not IS_LONG, reason="FLOWSTONE_GROUP_TOOLS=all runs it")
def test_kafkas_group_tool_shows_type_state_and_lag(java: Java, broker: flowstone.Broker) -> None:
    server = ("--bootstrap-server", broker.bootstrap)
    listed = java(f"{TOOLS}.consumer.group.ConsumerGroupCommand", *server, "--list", "--type", "--state")
    assert ["g", "Consumer", "Empty"] in [line.split() for line in listed.splitlines()]
    described = java(f"{TOOLS}.consumer.group.ConsumerGroupCommand", *server, "--describe", "--group", "g")
    (row,) = [line.split() for line in described.splitlines() if line.startswith("g ")]
    assert row[:6] == ["g", "t", "0", "5", "5", "0"]


@pytest.mark.skipif(not IS_LONG, reason="FLOWSTONE_GROUP_TOOLS=all runs it")
def test_kafkas_tools_show_the_quorum_and_subscribe_to_clients_metrics(java: Java, broker: flowstone.Broker) -> None:
    server = ("--bootstrap-server", broker.bootstrap)
    status = java(f"{TOOLS}.MetadataQuorumCommand", *server, "describe", "--status")
    assert "LeaderId:               1" in status
    command = f"{TOOLS}.ClientMetricsCommand"
    java(command, *server, "--alter", "--name", "all", "--metrics", "*", "--interval", "1000")
    assert "interval.ms=1000" in java(command, *server, "--describe", "--name", "all")
