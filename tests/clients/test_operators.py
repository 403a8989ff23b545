"""Kafka's own operator tools, against a cluster."""

from __future__ import annotations

import flowstone
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
        (line,) = (line for line in features("describe").splitlines() if line.startswith("Feature:"))
        columns = ("SupportedMinVersion: 1", "SupportedMaxVersion: 2", "FinalizedVersionLevel: 2", "Epoch: ")
        assert "flowstone.metadata.version" in line
        assert all(each in line for each in columns)
        told = features("upgrade", "--feature", "flowstone.metadata.version=2")
        assert "flowstone.metadata.version was upgraded to 2." in told
