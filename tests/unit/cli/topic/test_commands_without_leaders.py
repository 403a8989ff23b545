from __future__ import annotations

import json
from collections.abc import Callable
from subprocess import CompletedProcess

import flowstone


def test_a_partition_without_a_leader_is_described_without_offsets(run: Callable[..., CompletedProcess[str]]) -> None:
    with flowstone.Cluster(brokers=2) as cluster:
        cluster.create_topic("t", partitions=2, replication_factor=1)
        gone = cluster.leader("t", 0)
        cluster.kill(gone)
        cluster.advance(seconds=60)
        told = run("topic", "describe", "t", "--json", "--bootstrap", cluster.bootstrap)
    assert told.returncode == 0, told.stderr
    offsets = {each["leader"]: each["next_offset"] for each in json.loads(told.stdout)["partitions"]}
    assert offsets == {-1: None, 3 - gone: 0}
