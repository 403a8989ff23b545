"""What a broker says that is started in the wrong way: alone, with a cluster's data."""

from __future__ import annotations

from pathlib import Path

import pytest

import flowstone
from flowstone.embedded.zookeeper_server import ZooKeeperServer
from flowstone.errors import StartupError


def test_a_member_of_a_cluster_is_not_started_as_a_single_broker(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    data = str(tmp_path)
    with flowstone.Broker(data=data, settings={"zookeeper.connect": f"{zookeeper.address}/start"}) as broker:
        broker.create_topic("orders")
    with pytest.raises(StartupError, match=r"metadata is in ZooKeeper: set zookeeper\.connect"):
        flowstone.Broker(data=data)
