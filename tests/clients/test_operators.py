"""Kafka's own operator tools, against a cluster."""

from __future__ import annotations

import flowstone
from flowstone.cluster.image.features import METADATA_LEVEL_MAX, METADATA_VERSION
from tests.clients.conftest import Java


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
