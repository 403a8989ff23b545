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
